"""Drafts that are looked up in the text so far: what followed the newest tokens when they last stood there.

Shapes: S sequences · K drafts · N slots · L tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.interfaces import Drafts
from deepinfer.kernels import cpu_find_match

if TYPE_CHECKING:
    from collections.abc import Callable

    from deepinfer.interfaces import StepInput


class Ngram:
    """Proposes behind the longest match of `max_match` … `min_match` newest tokens with the sequence's own prompt and answer.

    Of matches of one length the newest counts. The confidence is m / (m + 1) for a match of m tokens, at every depth: a crude
    rule that only ranks sequences, since a looked-up draft says nothing of the model. Needs no weights and no features.
    """

    needs_features = False

    def __init__(self, *, depth: int, min_match: int, max_match: int) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(
                f"speculation.min_match={min_match}: speculation.max_match={max_match} is shorter, so nothing would ever "
                f"match; speculation.min_match={max_match}"
            )
        self.depth, self.min_match, self.max_match = depth, min_match, max_match

    def observe(self, step: StepInput, features_TF: Any) -> None:
        """The tokens themselves are all it looks at."""

    def draft(
        self,
        slots: np.ndarray,
        tokens_NL: np.ndarray,
        num_tokens: np.ndarray,
        pad: int,
        choose: Callable[..., np.ndarray],
    ) -> Drafts:
        """See `interfaces.Drafter`. `choose` sees a proposal of -1 wherever a sequence has none, or none any more."""
        lengths_S, proposed_SK = cpu_find_match.propose(
            tokens_NL, slots, pad, num_tokens, least=self.min_match, most=self.max_match, depth=self.depth
        )
        token_ids = np.full_like(proposed_SK, -1)
        going_S = lengths_S > 0
        for number in range(self.depth):
            if not going_S.any():
                break
            chosen_S = choose(number, None, proposed_S=np.where(going_S, proposed_SK[:, number], -1))
            going_S = going_S & (chosen_S >= 0)
            token_ids[:, number] = np.where(going_S, chosen_S, -1)
        chance_S1 = (lengths_S / (lengths_S + 1.0)).astype(np.float32)[:, None]
        return Drafts(token_ids, np.where(token_ids >= 0, chance_S1, np.float32(0)))
