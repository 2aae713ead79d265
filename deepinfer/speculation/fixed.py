"""The same number of drafts checked of every sequence, whatever their confidence."""

import numpy as np

from deepinfer.speculation.back_off import BackOff


class FixedLengths:
    """`interfaces.VerifyLengths` of speculation=dspark_fixed and speculation=ngram.

    `most_each` drafts of a sequence are checked, or all that it has; whoever hands the budget out has to cut what a sequence
    has available to that, else a sequence could get another's share. `back_off` None: drafting never stops.
    """

    def __init__(self, verify_length: int, back_off: BackOff | None = None) -> None:
        self.most_each, self.back_off = verify_length, back_off

    def budget(self, confidence_RK: np.ndarray, other_rows: int) -> tuple[int, bool]:
        """(drafts to check, whether to draft): see `interfaces.VerifyLengths`. Confidences and prompt rows change nothing."""
        if self.back_off is not None and not self.back_off.drafting:
            return 0, False
        return len(confidence_RK) * self.most_each, True

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
        """A step is through: `interfaces.VerifyLengths`. `num_checked` None: all rows beyond one a sequence were drafts."""
        if self.back_off is not None:
            self.back_off.observe(
                num_sequences=num_sequences,
                num_rows=num_rows,
                num_tokens=num_tokens,
                num_checked=num_rows - num_sequences if num_checked is None else num_checked,
                drafted=drafted,
                device_s=device_s,
            )

    def take_notice(self) -> str:
        """What the user should know, once; else ""."""
        return "" if self.back_off is None else self.back_off.take_notice()
