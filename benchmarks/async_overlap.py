"""Share of the time in which the device has work, with steps scheduled ahead and without, on a device of constant step time.

    python benchmarks/async_overlap.py [--batch 256] [--step-ms 1 2 5 10 20 50] [--drafts 0] [--seconds 3]

The engine is the real one; the device only waits, on the machine's clock. `busy_share` is what its own account says: a step
that finds the device free counts the time since the step before as idle, and so does a forward pass that waits for its masks.
The limit is 1. `exposed_us` is that idle time in each step; `wall_exposed_us` the same from outside: time of a whole step less
the device's. The arithmetic of the simulated device (resolving rows, making tokens) runs in the host's thread, is `device_us`
of each step and counts against the engine here. `clock_late_us` says how late a wait of one step ends on this machine, and
`stolen_us` how long a step stood waiting for a processor that others had. `undisturbed_` figures are of the steps among all
where, in it and in the one before, that was less than 50 µs; Linux counts it, elsewhere they are missing.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import options, record
from scheduler import BLOCK_TOKENS, PROMPT_TOKENS, full_engine

from deepinfer.engine.clocks import RealClock
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import SimulatedExecutor

WARM_UP_STEPS = 5
UNDISTURBED_S = 50e-6
RUN_QUEUE = Path("/proc/thread-self/schedstat")  # ns running, ns waiting to run, turns


def clock_lateness_s(wait_s: float, waits: int) -> np.ndarray:
    """Seconds by which each of `waits` waits of the clock ended late."""
    clock, late = RealClock(), []
    for _ in range(waits):
        target_s = clock.now() + wait_s
        clock.wait_until(target_s)
        late.append(clock.now() - target_s)
    return np.array(late)


def stolen_s() -> float:
    """Seconds that this thread was ready to run and did not, so far."""
    return int(RUN_QUEUE.read_text().split()[1]) * 1e-9 if RUN_QUEUE.is_file() else float("nan")


class Stopwatch:
    """Seconds inside the calls of a simulated device, waiting left out."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        self.spent_s = 0.0
        executor.submit = self._timed(executor.submit)
        executor.sample = self._timed(executor.sample)

    def _timed(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        def timed(argument: Any) -> None:
            started = time.perf_counter()
            call(argument)
            self.spent_s += time.perf_counter() - started

        return timed


def run(engine: Engine, steps: int) -> dict[str, float]:
    executor = engine.executor
    assert isinstance(executor, SimulatedExecutor)
    stopwatch = Stopwatch(executor)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    spent_s = stopwatch.spent_s
    marks = [(time.perf_counter(), executor.busy_s, executor.idle_s, stolen_s())]
    for _ in range(steps):
        assert engine.step()
        marks.append((time.perf_counter(), executor.busy_s, executor.idle_s, stolen_s()))
    step_s, busy_s, idle_s, stolen = np.diff(np.array(marks), axis=0).T
    quiet = stolen < UNDISTURBED_S
    quiet[1:] &= quiet[:-1].copy()
    figures = {
        "busy_share": round(busy_s.sum() / (busy_s.sum() + idle_s.sum()), 5),
        "exposed_us": round(idle_s.mean() * 1e6, 1),
        "wall_exposed_us": round((step_s - busy_s).mean() * 1e6, 1),
        "device_us": round((stopwatch.spent_s - spent_s) / steps * 1e6, 1),
    }
    if quiet.any():
        figures |= {
            "stolen_us": round(stolen.mean() * 1e6, 1),
            "undisturbed_busy_share": round(busy_s[quiet].sum() / (busy_s[quiet].sum() + idle_s[quiet].sum()), 5),
            "undisturbed_exposed_us": round(idle_s[quiet].mean() * 1e6, 1),
            "undisturbed_steps": int(quiet.sum()),
        }
    return figures


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[1, 2, 5, 10, 20, 50])
    parser.add_argument("--drafts", type=int, default=0, help="of a sequence, all checked")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    asked = parser.parse_args()
    for step_ms in asked.step_ms:
        steps = max(20, round(asked.seconds * 1e3 / step_ms))
        late_s = clock_lateness_s(step_ms / 1e3, max(20, steps // 10))
        for depth in (0, 1):
            length = PROMPT_TOKENS + BLOCK_TOKENS + (1 + asked.drafts) * (steps + WARM_UP_STEPS + 8)
            engine = full_engine(
                asked.batch,
                length,
                async_depth=depth,
                drafts=asked.drafts,
                step_time_s=step_ms / 1e3,
                clock=RealClock(),
            )
            record(
                Path(__file__).stem,
                batch=asked.batch,
                step_ms=step_ms,
                async_depth=depth,
                drafts=asked.drafts,
                **run(engine, steps),
                clock_late_us=round(float(np.median(late_s)) * 1e6, 2),
                clock_late_p99_us=round(float(np.percentile(late_s, 99)) * 1e6, 1),
                steps=steps,
            )


if __name__ == "__main__":
    main()
