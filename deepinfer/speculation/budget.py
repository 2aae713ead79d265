"""How many drafts a step checks: the number with the most tokens a second, by the cost curve and by old confidences.

R decoding sequences · K drafts of each at most · B rows of these sequences: one each, and the drafts that are checked.

The search looks at every B, since the time of a step is a staircase: the first B after which tokens a second fall is often not
the best one. Looking so far must not use what this step drafted, or the output would lose its law: whether a draft is checked
would depend on drafts after it, and thereby on itself (DSpark paper, arXiv 2607.05147, appendix). So the confidences here are
those known two steps before; who gets the budget is decided where the new ones are, by `speculation.allocation.allocate`.
"""

import numpy as np

from deepinfer.speculation.allocation import survival
from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.fixed import FixedLengths


def best_budget(survival_RK: np.ndarray, cost_s: np.ndarray) -> int:
    """Drafts b with the largest (R + the b highest survivals) / cost_s[b], of equal ones the fewest.

    `cost_s` float64 [R·K + 1]: seconds of the step with 0, 1, … drafts checked.
    """
    assert cost_s.shape == (survival_RK.size + 1,)
    tokens = np.empty(survival_RK.size + 1)
    tokens[0] = len(survival_RK)
    tokens[1:] = np.sort(survival_RK, axis=None)[::-1]
    np.cumsum(tokens, out=tokens)
    return int((tokens / cost_s).argmax())  # the first of equal ones


class ConfidenceBudget(FixedLengths):
    """`interfaces.VerifyLengths` of speculation=dspark.

    Without a curve nothing is known of the time of a step, and every draft that there is is checked. `back_off` None: drafting
    never stops. `most_each`: drafts of one sequence that may be checked.
    """

    def __init__(self, depth: int, curve: CostCurve | None = None, back_off: BackOff | None = None) -> None:
        super().__init__(depth, back_off)
        self.curve = curve

    def budget(self, confidence_RK: np.ndarray, other_rows: int) -> tuple[int, bool]:
        """(drafts to check, whether to draft): see `interfaces.VerifyLengths`.

        A missing confidence (NaN) counts as 1: nothing is held against drafts that nothing is known of.
        """
        all_of_them, draft = super().budget(confidence_RK, other_rows)
        if not draft:
            return all_of_them, draft
        num_sequences, depth = confidence_RK.shape
        assert depth == self.most_each
        if self.curve is None or not num_sequences:
            return all_of_them, draft
        known_RK = np.where(np.isnan(confidence_RK), np.float32(1), confidence_RK)
        rows = num_sequences + other_rows + np.arange(num_sequences * depth + 1)
        return best_budget(survival(known_RK), self.curve.predict(rows, num_sequences)), draft

    def observe(
        self,
        *,
        num_sequences: int,
        num_rows: int,
        num_tokens: int,
        drafted: bool,
        device_s: float,
        num_checked: int | None = None,
    ) -> None:
        """A step is through; it corrects the curve as well."""
        if self.curve is not None:
            self.curve.observe(num_rows, num_sequences, device_s, drafted=drafted)
        super().observe(
            num_sequences=num_sequences,
            num_rows=num_rows,
            num_tokens=num_tokens,
            drafted=drafted,
            device_s=device_s,
            num_checked=num_checked,
        )
