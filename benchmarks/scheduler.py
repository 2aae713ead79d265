"""Host cost of a decode step on the constant-step executor: µs per step and per request at B = 1 … 4096.

    python benchmarks/scheduler.py [--steps 400]

The device is replaced (its time is zero here); scheduler, tables, booking and events are the real ones. `scheduler_us` is
schedule + commit, `events_us` what the engine makes of the results for its callers, `engine_us` a whole `Engine.step()` with
the simulated device's own arithmetic. `churn` ends a tenth of the requests early and admits as many at every 20th step.
Prompts differ in length, so that at every step some answers need a new block.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from record import options, record

from deepinfer.cache.prefix_cache import PrefixCache
from deepinfer.cache.replay import Replay
from deepinfer.engine.clocks import Clock
from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import SamplingParams
from deepinfer.speculation.fixed import FixedLengths

BATCHES = (1, 64, 256, 1024, 4096)
PROMPT_TOKENS = 96  # of the shortest; up to a block more
BLOCK_TOKENS = 128
NGRAM_SIZE = 4


def full_engine(
    batch: int,
    length: int,
    *,
    async_depth: int = 0,
    drafts: int = 0,
    acceptance: float = 0.8,
    step_time_s: float = 0.0,
    clock: Clock | None = None,
    prefix: bool = False,
) -> Engine:
    """`batch` running answers of up to `length` tokens, all prompts computed; cache for all of them, nothing is preempted."""
    limits = EngineLimits(
        vocab_size=129_280,
        ngram_size=NGRAM_SIZE,
        max_model_len=length,
        max_num_seqs=batch,
        max_num_batched_tokens=batch * (PROMPT_TOKENS + BLOCK_TOKENS),
        max_prefill_tokens=batch * (PROMPT_TOKENS + BLOCK_TOKENS),
        num_blocks=batch * (length // BLOCK_TOKENS + 1),
        block_tokens=BLOCK_TOKENS,
        eos_token_ids=(1,),
        async_depth=async_depth,
        draft_depth=drafts,
    )
    executor = SimulatedExecutor(
        vocab_size=limits.vocab_size,
        state=DecodeState(batch, length, NGRAM_SIZE, drafts),
        step_time_s=step_time_s,
        acceptance=acceptance,
        clock=clock,
    )
    engine = Engine(
        executor,
        limits,
        lengths=FixedLengths(drafts) if drafts else None,
        prefix=prefix_cache(limits.num_blocks) if prefix else None,
        seed_entropy=1,
    )
    for number in range(batch):
        submit(engine, length, number)
    engine.step()
    assert engine.stats().decoding == batch
    return engine


def prefix_cache(num_blocks: int) -> PrefixCache:
    """As a plan of the released model has it."""
    replay = Replay(keep_tokens=0, on_hit="snapshot", sliding_window=128, num_layers=61, boundary=32)
    return PrefixCache(
        num_blocks=num_blocks,
        num_snapshots=64,
        block_tokens=BLOCK_TOKENS,
        snapshot_every=32,
        replay=replay,
        numerics_digest="benchmark",
    )


def submit(engine: Engine, length: int, number: int) -> None:
    prompt = np.arange(PROMPT_TOKENS + number % BLOCK_TOKENS) + 7 + number
    engine.submit(prompt, SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.0))


def phases_of_step(engine: Engine, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float, float, int]:
    """Seconds of schedule, commit and events of one step, the device's part left out, and the tokens that the step gave.

    In the engine's order: at async_depth 1 the step is scheduled before the results of the one before it are booked.
    """
    started = clock()
    scheduled = engine.scheduler.schedule()
    schedule_s = clock() - started
    assert scheduled is not None
    engine._submit(scheduled)
    if not engine.limits.async_depth:
        engine.executor.sample(engine._sample_input(scheduled, []))
        engine._flying = scheduled
    settled, engine._flying = engine._flying, None
    assert settled is not None
    output = engine.executor.collect()
    collected = clock()
    committed = engine.scheduler.commit(settled, output)
    booked = clock()
    events = engine._tell(settled, output, committed)
    told = clock()
    if engine.limits.async_depth:
        engine.executor.sample(engine._sample_input(scheduled, events))
        engine._flying = scheduled
    return schedule_s, booked - collected, told - booked, sum(len(event.token_ids) for event in events)


def by_phase(batch: int, steps: int) -> dict[str, np.ndarray]:
    """Phase → seconds of every step."""
    engine = full_engine(batch, PROMPT_TOKENS + BLOCK_TOKENS + 4 * steps)
    schedule, commit, events, _ = np.array([phases_of_step(engine) for _ in range(steps)]).T
    return {"schedule": schedule, "commit": commit, "events": events}


def whole_steps(batch: int, steps: int, *, churn: bool) -> np.ndarray:
    """Seconds of every `Engine.step()`; with churn they include ending and submitting requests."""
    engine, times = full_engine(batch, PROMPT_TOKENS + BLOCK_TOKENS + 4 * steps), []
    rng = np.random.default_rng(0)
    for number in range(steps):
        started = time.perf_counter()
        if churn and number % 20 == 0:
            running = engine.scheduler.request_ids()
            for request_id in rng.choice(running, max(1, batch // 10), replace=False).tolist():
                engine.finish(request_id)
                submit(engine, engine.limits.max_model_len, request_id)
        engine.step()
        times.append(time.perf_counter() - started)
    return np.array(times)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    for batch in BATCHES:
        phases = by_phase(batch, steps)
        scheduler = phases["schedule"] + phases["commit"]
        engine, churned = whole_steps(batch, steps, churn=False), whole_steps(batch, steps, churn=True)
        record(
            Path(__file__).stem,
            batch=batch,
            scheduler_us_per_request=round(float(np.median(scheduler)) * 1e6 / batch, 4),
            engine_us_per_request=round(float(np.median(engine)) * 1e6 / batch, 4),
            churn_us_per_request=round(float(np.mean(churned)) * 1e6 / batch, 4),
            scheduler_us=round(float(np.median(scheduler)) * 1e6, 1),
            scheduler_p99_us=round(float(np.percentile(scheduler, 99)) * 1e6, 1),
            **{f"{name}_us": round(float(np.median(values)) * 1e6, 1) for name, values in phases.items()},
            engine_us=round(float(np.median(engine)) * 1e6, 1),
            engine_p99_us=round(float(np.percentile(engine, 99)) * 1e6, 1),
            steps=steps,
        )


if __name__ == "__main__":
    main()
