"""Coupled verification: a draft is accepted when it is the target's own sample at its position.

Target and drafter choose argmax(scores + Gumbel noise) with the same noise, a function of (seed, position, token id). So the
tokens are those of plain sampling, bit for bit, whatever is drafted and however much of it is checked, and nothing of the
drafter's distribution is remembered. With p and q the two distributions, a draft is accepted with probability at least
(1 - TV) / (1 + TV), TV = ½ Σ|p - q|; rejection sampling reaches 1 - TV. Source: Daliri, Musco, Suresh, "Coupling without
communication and drafter-invariant speculative decoding", ISIT 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.speculation.chains import Chains
from deepinfer.speculation.outcomes import Outcomes
from deepinfer.speculation.row_sampler import legal_proposals, masks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import Verified, VerifyRows
    from deepinfer.speculation.row_sampler import RowSampler


class CoupledVerifier:
    """A Verifier. Also the one to take where nothing is drafted: a single row gives the plain sample."""

    def __init__(self, sampler: RowSampler) -> None:
        self._sampler = sampler
        self._chains = Chains(sampler.num_slots)

    def verify(self, logits_TV: Any, rows: VerifyRows) -> Verified:
        """The target's samples from each sequence's first row on, as far as they are the drafts, and the one after them.

        Rows behind the first that differs are not looked at. A row that gives no token (NaN, +inf, everything ruled out)
        fails its sequence after the tokens before it.
        """
        outcomes = Outcomes(rows)
        choice = self._sampler.rows(logits_TV)
        for depth, going in outcomes.depths():
            sampled = choice.sample(*outcomes.places(going, depth), outcomes.masks(going, depth))
            outcomes.add(going, depth, sampled)
        return outcomes.verified()

    def choose(
        self,
        slots: np.ndarray,
        positions: np.ndarray,
        number: int,
        logits_SV: Any,
        masks: Mapping[int, np.ndarray],
        *,
        proposed_S: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draft `number` of each sequence; see `Verifier.choose`. Logits that give no token give no draft."""
        open_ = self._chains.open(slots, number)
        drafts_S = np.full(len(slots), -1)
        open_masks = masks_of(open_, masks)
        if proposed_S is None:
            choice = self._sampler.rows(logits_SV)
            sampled = choice.sample(open_, slots[open_], positions[open_], open_masks, logprobs=False)
            drafts_S[open_] = sampled.token_ids
        else:
            drafts_S[open_] = legal_proposals(proposed_S[open_], open_masks)
            for s in open_[drafts_S[open_] >= 0].tolist():
                self._sampler.record(int(slots[s]), int(positions[s]), [int(drafts_S[s])])
        self._chains.extend(slots[drafts_S >= 0])
        return drafts_S
