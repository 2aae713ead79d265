"""What the drafts of a running engine were said to be worth, and what came of them; and what steps were said to take."""

import time
from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.interfaces import SampleInput, StepOutput, StepPlan
from deepinfer.speculation.cost_curve import CostCurve

BINS = 20


@dataclass
class Watch:
    """Of an executor's timed steps. Pairs are (confidence, whether accepted) of the drafts that were reached."""

    pairs: list[np.ndarray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # of predicted step times
    cpu_errors: list[float] = field(default_factory=list)  # the same in the thread's processor time
    timed: bool = False
    step_cpu_s: float = 0.0

    def follow(self, executor: LocalExecutor) -> None:
        submit, sample, collect, state = executor.submit, executor.sample, executor.collect, executor.state
        confidence: list[np.ndarray] = []

        def submitted(plan: StepPlan) -> None:
            confidence.append(state.confidence_NK[plan.slots[: plan.num_decode]].copy())
            started_s = time.thread_time()
            submit(plan)
            self.step_cpu_s = time.thread_time() - started_s

        def sampled(sample_input: SampleInput) -> None:
            started_s = time.thread_time()
            sample(sample_input)
            self.step_cpu_s += time.thread_time() - started_s

        def collected() -> StepOutput:
            output, served_DK = collect(), confidence.pop()
            if self.timed and output.num_checked is not None and served_DK.size:
                decode = slice(len(served_DK))
                accepted_D = (output.counts - ~output.failed)[decode, None]
                place_K = np.arange(served_DK.shape[1])
                reached_DK = (place_K <= accepted_D) & (place_K < output.num_checked[decode, None])
                self.pairs.append(np.stack([served_DK[reached_DK], (place_K < accepted_D)[reached_DK]]))
            return output

        executor.submit, executor.sample = submitted, sampled  # type: ignore[method-assign]
        executor.collect = collected  # type: ignore[method-assign]

    def follow_curve(self, curve: CostCurve) -> None:
        observe = curve.observe
        by_cpu = CostCurve(curve.rows, curve.forward_s, curve.sequences, curve.plain_s, curve.drafting_s)

        def observed(rows: int, sequences: int, device_s: float, *, drafted: bool) -> None:
            if self.timed and sequences:
                self.errors.append(abs(float(curve.predict(rows, sequences, drafted=drafted)) / device_s - 1))
                predicted_s = float(by_cpu.predict(rows, sequences, drafted=drafted))
                self.cpu_errors.append(abs(predicted_s / self.step_cpu_s - 1))
            by_cpu.observe(rows, sequences, self.step_cpu_s, drafted=drafted)
            observe(rows, sequences, device_s, drafted=drafted)

        curve.observe = observed  # type: ignore[method-assign]


def calibration_error(pairs: np.ndarray) -> float:
    """Of (confidence, accepted) [2, n]: |mean confidence - share accepted| of each bin, weighed by its drafts."""
    confidence, accepted = pairs
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - accepted, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))
