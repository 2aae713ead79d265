"""Whether the host keeps a GPU busy: gaps between decode steps of a running engine, and where the host's time goes.

    python benchmarks/host_gap.py [--batch 1 8 64 256] [--step-ms 0 5 10] [--steps 200] [--record] [speculation=none …]

Further words override the configuration (hardware=h200 model=v41_tiny). `--step-ms` above 0 makes every step last at least
about that long by a wait on the device behind its forward pass, as a larger model's would; with 0 nothing is added. Everything
runs twice, and what runs first is not counted: it captures the graphs.

Two gaps of a step are measured by events on the device's stream: from the end of the step before to its own beginning, and
from the end of its forward pass to the beginning of its sampling. Where a call's work was all launched before the device had
come to its beginning, the device never waited (`ahead_share`). Elsewhere it may also have waited inside the call, at most as
long as the call took on the host: `gap_most_us` and `busy_share_least` count all of that. Calls are timed with the host's
waiting for results left out (`waited_us`); `rest_us` is what a step costs beside them: events, ends, tokens.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from record import options, record

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve

PROMPT_TOKENS, WARM_UP_STEPS = 64, 20
CALLS = ("schedule", "submit", "collect", "commit", "sample")


@dataclass
class StepTimes:
    """Of one step: seconds of the host by call, and points of the device's stream."""

    host_s: dict[str, float] = field(default_factory=dict)
    begun: dict[str, torch.cuda.Event] = field(default_factory=dict)  # of "submit" and "sample"
    ended: dict[str, torch.cuda.Event] = field(default_factory=dict)
    ahead: dict[str, bool] = field(default_factory=dict)  # all was launched before the device came to its beginning
    waited_s: float = 0.0


class Watch:
    """Looks over the shoulder of an engine: its calls keep their order and their results."""

    def __init__(self, graph: EngineGraph, padding: "Padding") -> None:
        self.steps: list[StepTimes] = []
        self._sampling: list[StepTimes] = []  # submitted, not sampled
        self._flying: list[StepTimes] = []  # sampled, not collected
        engine, executor = graph.engine, graph.engine.executor
        self._padding, self._scheduled_s, self._collected = padding, 0.0, StepTimes()
        engine.scheduler.schedule = self._schedule(engine.scheduler.schedule)
        engine.scheduler.commit = self._commit(engine.scheduler.commit)
        executor.submit = self._submit(executor.submit)
        executor.sample = self._sample(executor.sample)
        executor.collect = self._collect(executor.collect)

    def _schedule(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def schedule() -> Any:
            started = time.perf_counter()
            found = call()
            self._scheduled_s = time.perf_counter() - started
            return found

        return schedule

    def _submit(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def submit(plan: Any) -> None:
            step = StepTimes({"schedule": self._scheduled_s})
            self.steps.append(step)
            self._sampling.append(step)
            self._launch(step, "submit", call, plan)

        return submit

    def _sample(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def sample(asked: Any) -> None:
            step = self._sampling.pop(0)
            self._flying.append(step)
            self._launch(step, "sample", call, asked)

        return sample

    def _launch(self, step: StepTimes, name: str, call: Callable[[Any], None], argument: Any) -> None:
        step.begun[name], step.ended[name] = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        step.begun[name].record()
        started = time.perf_counter()
        call(argument)
        if name == "submit":
            self._padding.wait()
        step.host_s[name] = time.perf_counter() - started
        step.ahead[name] = not step.begun[name].query()
        step.ended[name].record()

    def _collect(self, call: Callable[[], Any]) -> Callable[[], Any]:
        def collect() -> Any:
            step = self._flying.pop(0)
            started = time.perf_counter()
            step.ended["sample"].synchronize()
            there = time.perf_counter()
            found = call()
            step.waited_s, step.host_s["collect"] = there - started, time.perf_counter() - there
            self._collected = step
            return found

        return collect

    def _commit(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def commit(*args: Any) -> Any:
            started = time.perf_counter()
            found = call(*args)
            self._collected.host_s["commit"] = time.perf_counter() - started
            return found

        return commit


class Padding:
    """A wait on the device that is added to every forward pass, in milliseconds."""

    def __init__(self) -> None:
        self.ms, self._cycles_per_ms = 0.0, self._measured()

    def wait(self) -> None:
        if self.ms > 0:
            torch.cuda._sleep(int(self.ms * self._cycles_per_ms))

    @staticmethod
    def _measured() -> float:
        cycles, (start, end) = 20_000_000, (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return cycles / start.elapsed_time(end)


def figures(steps: list[StepTimes], wall_s: float) -> dict[str, Any]:
    """Of steps that followed one another, the first of which tells only where the second begins."""
    pairs = list(pairwise(steps))
    between_us = np.array([1e3 * one.ended["sample"].elapsed_time(other.begun["submit"]) for one, other in pairs])
    inside_us = np.array([1e3 * one.ended["submit"].elapsed_time(one.begun["sample"]) for _, one in pairs])
    step_us = np.array([1e3 * one.begun["submit"].elapsed_time(other.begun["submit"]) for one, other in pairs])
    late_us = np.array([_launching_us(one) for _, one in pairs])
    gaps_us = between_us + inside_us
    host_us = {f"{name}_us": [1e6 * one.host_s[name] for _, one in pairs] for name in CALLS}
    host_us["waited_us"] = [1e6 * one.waited_s for _, one in pairs]
    rest_us = wall_s * 1e6 / len(pairs) - sum(float(np.mean(spent)) for spent in host_us.values())
    return {
        "step_us": _median(step_us),
        "gap_us": _median(gaps_us),
        "gap_p90_us": round(float(np.percentile(gaps_us, 90)), 1),
        "gap_between_us": _median(between_us),
        "gap_before_sampling_us": _median(inside_us),
        "gap_most_us": _median(gaps_us + late_us),
        "busy_share": round(1 - float(gaps_us.sum() / step_us.sum()), 4),
        "busy_share_least": round(max(0.0, 1 - float((gaps_us + late_us).sum() / step_us.sum())), 4),
        "ahead_share": round(float(np.mean([all(one.ahead.values()) for _, one in pairs])), 3),
        **{name: _median(spent) for name, spent in host_us.items()},
        "rest_us": round(max(0.0, rest_us), 1),
    }


def _launching_us(step: StepTimes) -> float:
    """The most that the device may have waited inside the two calls that launch."""
    return sum(1e6 * step.host_s[name] for name, ahead in step.ahead.items() if not ahead)


def _median(values: Any) -> float:
    return round(float(np.median(values)), 1)


def run(graph: EngineGraph, watch: Watch, batch: int, steps: int) -> dict[str, Any]:
    """`batch` answers, all of which run through all steps that count."""
    engine, rng = graph.engine, np.random.default_rng(batch)
    room = graph.limits.max_model_len - PROMPT_TOKENS
    params = SamplingParams(max_tokens=room, temperature=1.0, ignore_eos=True, seed=1)
    prompts = rng.integers(0, graph.limits.vocab_size, (batch, PROMPT_TOKENS))
    ids = [engine.submit(prompt, params)[0] for prompt in prompts]
    while (stats := engine.stats()).waiting or stats.prefilling:
        engine.step()
    for _ in range(WARM_UP_STEPS):
        engine.step()
    first, started_s, tokens = len(watch.steps), time.perf_counter(), engine.stats().sampled_tokens
    for _ in range(steps):
        assert len(engine.step()) == batch, "an answer ended: give fewer --steps, or a larger model.max_model_len"
    wall_s, tokens = time.perf_counter() - started_s, engine.stats().sampled_tokens - tokens
    measured = watch.steps[first - 1 : first + steps - 1]  # the last one may not be collected yet
    for request_id in ids:
        engine.finish(request_id)
    while engine.has_work:
        engine.step()
    torch.cuda.synchronize()
    return {**figures(measured, wall_s), "tokens_per_s": round(tokens / wall_s, 1)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0, 5, 10])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 0], help="scheduler.async_depth")
    asked, overrides = parser.parse_known_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"no CUDA device here: torch {torch.__version__} finds none; gaps are those of a GPU's stream")
    rows = []
    for depth in asked.depth:
        rows += measure(depth, asked.batch, asked.step_ms, asked.steps, overrides)
        gc.collect()  # the engine, so that the next one finds its memory
        torch.cuda.empty_cache()
    table(rows)


def measure(depth: int, batches: list[int], padded_ms: list[float], steps: int, overrides: list[str]) -> list[Any]:
    """The lines of one engine."""
    fixed = ["hardware=h200", "model=v41_tiny", f"scheduler.async_depth={depth}"]
    spec = load(*fixed, f"scheduler.max_num_seqs={max(batches)}", *overrides)
    graph = build_graph(resolve(spec, probe(spec)))
    padding, rows = Padding(), []
    watch = Watch(graph, padding)
    for batch in batches:
        padding.ms = 0.0
        bare_ms = run(graph, watch, batch, steps)["step_us"] * 1e-3
        for step_ms in padded_ms:
            padding.ms = max(0.0, step_ms - bare_ms)
            keys = {"batch": batch, "async_depth": depth, "padded_to_ms": step_ms, "overrides": overrides}
            rows.append({**keys, **run(graph, watch, batch, steps)})
            record(Path(__file__).stem, **rows[-1], steps=steps, device=torch.cuda.get_device_name())
    graph.engine.close()
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    names = ("async_depth", "batch", "padded_to_ms", "step_us", "gap_us", "gap_most_us", "busy_share", "busy_share_least",
             "ahead_share", *(f"{name}_us" for name in CALLS), "rest_us", "tokens_per_s")  # fmt: skip
    print(" ".join(f"{name.removesuffix('_us'):>16}" for name in names))
    for row in rows:
        print(" ".join(f"{row[name]:>16}" for name in names))


if __name__ == "__main__":
    main()
