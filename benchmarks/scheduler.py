"""Host cost of a decode step on the constant-step executor: µs per step and per request at B = 1 … 4096.

    python benchmarks/scheduler.py [--steps 400]

The device is replaced (its time is zero here); scheduler, tables, booking and events are the real ones. `scheduler_us` is
schedule + commit, `events_us` what the engine makes of the results for its callers, `engine_us` a whole `Engine.step()` with
the simulated device's own arithmetic. `churn` ends a tenth of the requests early and admits as many at every 20th step.
"""

import time
from pathlib import Path

import numpy as np
from record import options, record

from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import SamplingParams

BATCHES = (1, 64, 256, 1024, 4096)
PROMPT_TOKENS = 96
BLOCK_TOKENS = 128


def full_engine(batch: int, steps: int) -> Engine:
    """`batch` running answers, all prompts computed."""
    length = PROMPT_TOKENS + 4 * steps
    limits = EngineLimits(
        vocab_size=129_280,
        ngram_size=4,
        max_model_len=length,
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT_TOKENS,
        max_prefill_tokens=batch * PROMPT_TOKENS,
        num_blocks=batch * (length // BLOCK_TOKENS + 1),
        block_tokens=BLOCK_TOKENS,
        eos_token_ids=(1,),
    )
    engine = Engine(SimulatedExecutor(vocab_size=limits.vocab_size, num_slots=batch), limits, seed_entropy=1)
    for _ in range(batch):
        submit(engine, length)
    engine.step()
    assert engine.stats().decoding == batch
    return engine


def submit(engine: Engine, length: int) -> None:
    prompt = np.arange(PROMPT_TOKENS) + 7
    engine.submit(prompt, SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.0))


def by_phase(batch: int, steps: int) -> dict[str, np.ndarray]:
    """Phase → seconds of every step."""
    engine = full_engine(batch, steps)
    times: dict[str, list[float]] = {"schedule": [], "commit": [], "events": []}
    for _ in range(steps):
        started = time.perf_counter()
        scheduled = engine.scheduler.schedule()
        assert scheduled is not None
        planned = time.perf_counter()
        output = engine._execute(scheduled)
        answered = time.perf_counter()
        events = engine._commit(scheduled, output)
        booked = time.perf_counter()
        assert len(events) == batch
        engine.scheduler.table.num_tokens[scheduled.slots] -= 1  # the same commit once more, alone
        again = time.perf_counter()
        engine.scheduler.commit(scheduled, output)
        commit_s = time.perf_counter() - again
        for name, value in (
            ("schedule", planned - started),
            ("commit", commit_s),
            ("events", max(0.0, booked - answered - commit_s)),
        ):
            times[name].append(value)
    return {name: np.array(values) for name, values in times.items()}


def whole_steps(batch: int, steps: int, *, churn: bool) -> np.ndarray:
    """Seconds of every `Engine.step()`; with churn they include ending and submitting requests."""
    engine, times = full_engine(batch, steps), []
    rng = np.random.default_rng(0)
    for number in range(steps):
        started = time.perf_counter()
        if churn and number % 20 == 0:
            running = engine.scheduler.request_ids()
            for request_id in rng.choice(running, max(1, batch // 10), replace=False).tolist():
                engine.finish(request_id)
                submit(engine, engine.limits.max_model_len)
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
