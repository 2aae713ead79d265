"""What the drafts of a running engine were said to be worth, and what came of them; and what steps were said to take."""

from dataclasses import dataclass, field

import numpy as np

from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.interfaces import StepOutput, StepPlan
from deepinfer.speculation.cost_curve import CostCurve

BINS = 20


@dataclass
class Watch:
    """Of an executor's timed steps. Pairs are (confidence, whether accepted) of the drafts that were reached."""

    pairs: list[np.ndarray] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)  # of predicted step times
    timed: bool = False

    def follow(self, executor: LocalExecutor) -> None:
        submit, collect, state = executor.submit, executor.collect, executor.state
        confidence: list[np.ndarray] = []

        def submitted(plan: StepPlan) -> None:
            confidence.append(state.confidence_NK[plan.slots[: plan.num_decode]].copy())
            submit(plan)

        def collected() -> StepOutput:
            output, served_DK = collect(), confidence.pop()
            if self.timed and output.num_checked is not None and served_DK.size:
                decode = slice(len(served_DK))
                accepted_D = (output.counts - ~output.failed)[decode, None]
                place_K = np.arange(served_DK.shape[1])
                reached_DK = (place_K <= accepted_D) & (place_K < output.num_checked[decode, None])
                self.pairs.append(np.stack([served_DK[reached_DK], (place_K < accepted_D)[reached_DK]]))
            return output

        executor.submit, executor.collect = submitted, collected  # type: ignore[method-assign]

    def follow_curve(self, curve: CostCurve) -> None:
        observe = curve.observe

        def observed(rows: int, sequences: int, device_s: float, *, drafted: bool) -> None:
            if self.timed and sequences:
                self.errors.append(abs(float(curve.predict(rows, sequences, drafted=drafted)) / device_s - 1))
            observe(rows, sequences, device_s, drafted=drafted)

        curve.observe = observed  # type: ignore[method-assign]


def calibration_error(pairs: np.ndarray) -> float:
    """Of (confidence, accepted) [2, n]: |mean confidence - share accepted| of each bin, weighed by its drafts."""
    confidence, accepted = pairs
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - accepted, minlength=BINS)
    return float(np.abs(gaps).sum() / len(confidence))
