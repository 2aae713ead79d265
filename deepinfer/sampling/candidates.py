"""What the token of one row is drawn from: its logits after edits, grammar mask, temperature and filters.

V vocabulary · K tokens that the filters leave · W words of a mask, 32 tokens each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.sampling.filters import survivors
from deepinfer.sampling.logprobs import log_softmax

if TYPE_CHECKING:
    from deepinfer.sampling.slot_params import SlotParams

RULED_OUT = "every token is ruled out by logit_bias, bad_words, min_tokens or the grammar together"


@dataclass(slots=True)
class Candidates:
    """One row. Greedy rows keep the scores as they are before the temperature, and all tokens."""

    logits_V: np.ndarray  # as the model gave them
    scores_V: np.ndarray  # float64; -inf where ruled out
    ids_K: np.ndarray | None  # int64, rising; None: all

    def kept_V(self) -> np.ndarray:
        """float64 [V]: the scores, -inf where the filters drop a token."""
        if self.ids_K is None:
            return self.scores_V
        kept_V = np.full(len(self.scores_V), -np.inf)
        kept_V[self.ids_K] = self.scores_V[self.ids_K]
        return kept_V

    def logprobs_V(self, processed: bool) -> np.ndarray:
        """float64 [V]: of the very distribution that is drawn from (of the edited logits where greedy), or raw."""
        return log_softmax(self.kept_V() if processed else self.logits_V)


def unpacked(mask_W: np.ndarray, vocab_size: int) -> np.ndarray:
    """bool [V] of a mask whose bit t % 32 of word t // 32 says whether token t is legal."""
    bits = np.unpackbits(mask_W.astype("<u4", copy=False).view(np.uint8), count=vocab_size, bitorder="little")
    return bits.view(bool)


def candidates_of(
    params: SlotParams, logits_V: np.ndarray, slot: int, position: int, mask_W: np.ndarray | None = None
) -> Candidates | None:
    """The candidates for the token at `position` of a slot; None where every token is ruled out.

    `logits_V` holds a finite entry, no NaN and no +inf. The history of the slot must reach to `position`.
    """
    edits = params.edits[slot]
    scores_V = logits_V if edits is None else edits.apply(logits_V, position)
    if mask_W is not None:
        scores_V = np.where(unpacked(mask_W, len(logits_V)), scores_V, -np.inf)
    if not scores_V.max() > -np.inf:
        return None
    if params.greedy_N[slot]:
        return Candidates(logits_V, scores_V, None)
    scores_V = scores_V.astype(np.float64) / params.temperature_N[slot]
    if not params.filtered_N[slot]:
        return Candidates(logits_V, scores_V, None)
    ids_K = survivors(scores_V, int(params.top_k_N[slot]), params.top_p_N[slot], params.min_p_N[slot])
    return Candidates(logits_V, scores_V, ids_K)
