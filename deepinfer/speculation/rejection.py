"""Rejection sampling: the most drafts that can be accepted while every token keeps exactly the target's law.

A draft x from q is accepted with probability min(1, p(x) / q(x)); where it is not, the token comes from max(p - q, 0). With
one draft a position is accepted with probability 1 - TV = Σ min(p, q). Drafts have noise of their own: had they the target's,
a rejection would tell something about the token that follows. Tokens differ from plain sampling; their law does not.
Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", ICML 2023, §2.3 and A.1.

Greedy sequences need no law: a draft is accepted when it is the best token.

Shapes: R sequences · S sequences that are drafted for · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.speculation.chains import Chains
from deepinfer.speculation.outcomes import Outcomes
from deepinfer.speculation.row_sampler import legal_proposals, masks_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import TokenLogprobs, Verified, VerifyRows
    from deepinfer.speculation.row_sampler import Rows, RowSampler


def acceptance(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Chance that a draft is accepted to which the target gives `p` and from which it was drawn with `q` > 0."""
    return np.minimum(1.0, p / q)


def residual(p_V: np.ndarray, q_V: np.ndarray) -> np.ndarray:
    """What the token comes from in the place of a rejected draft: max(p - q, 0), normalised."""
    rest_V = np.maximum(p_V - q_V, 0.0)
    total = rest_V.sum()
    # p and q that differ by rounding may leave nothing, at a rejection that has a chance of about 1e-16: p itself is then
    # as near to the law as any choice
    return rest_V / total if total > 0 else p_V


def one_hot(token_id: int, vocab_size: int) -> np.ndarray:
    """float64 [V]: the proposal of something that proposes a single token for certain."""
    q_V = np.zeros(vocab_size)
    q_V[token_id] = 1.0
    return q_V


@dataclass(slots=True)
class Proposal:
    """A draft, and what it was drawn from; None: proposed for certain.

    Kept in float32, and drawn from those: rounding moves the proposal, never the law.
    """

    token_id: int
    weights_V: np.ndarray | None

    def q_V(self, vocab_size: int) -> np.ndarray:
        if self.weights_V is None:
            return one_hot(self.token_id, vocab_size)
        return self.weights_V / self.weights_V.sum(dtype=np.float64)


@dataclass(slots=True)
class _Judged:
    """Tokens of drafted rows, as `Outcomes.add` takes them."""

    token_ids: np.ndarray
    failed: np.ndarray
    failures: dict[int, str]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class RejectionVerifier:
    """A Verifier. Remembers one distribution (4 bytes a vocabulary entry) for each draft that is not checked yet."""

    def __init__(self, sampler: RowSampler) -> None:
        self._sampler = sampler
        self._chains = Chains(sampler.num_slots)
        self._proposals: dict[int, list[Proposal]] = {}  # slot → its drafts by number; none where greedy

    def verify(self, logits_TV: Any, rows: VerifyRows) -> Verified:
        """Accepted drafts, then a token from the residual of the first that is rejected, or the target's sample.

        Rows behind the first rejection are not looked at. A row that gives no token (NaN, +inf, everything ruled out) fails
        its sequence after the tokens before it.
        """
        outcomes = Outcomes(rows)
        choice = self._sampler.rows(logits_TV)
        for depth, going in outcomes.depths():
            drafted = (outcomes.num_drafts_R[going] > depth) & ~self._sampler.greedy(rows.slots[going])
            if len(plain := going[~drafted]):
                outcomes.add(plain, depth, choice.sample(*outcomes.places(plain, depth), outcomes.masks(plain, depth)))
            if len(judged := going[drafted]):
                outcomes.add(judged, depth, self._judge(choice, outcomes, judged, depth))
        for slot in rows.slots.tolist():
            self._proposals.pop(slot, None)
        return outcomes.verified()

    def _judge(self, choice: Rows, outcomes: Outcomes, going: np.ndarray, number: int) -> _Judged:
        """Draft `number` of these sequences, or the token in its place."""
        places, masks = outcomes.places(going, number), outcomes.masks(going, number)
        (_, slots, positions), drafts_R = places, outcomes.rows.drafts[going, number]
        found = choice.distributions(*places, masks)
        proposals = [self._proposals[slot][number] for slot in slots.tolist()]
        assert [one.token_id for one in proposals] == drafts_R.tolist(), "these drafts were not chosen here"
        q_RV = np.stack([one.q_V(self._sampler.vocab_size) for one in proposals])
        every = np.arange(len(slots))
        chances_R = acceptance(found.p_RV[every, drafts_R], q_RV[every, drafts_R])
        tokens_R = np.where(self._sampler.coins(slots, positions) < chances_R, drafts_R, -1)
        rejected = np.flatnonzero((tokens_R < 0) & ~found.failed)
        if len(rejected):
            rest_RV = np.stack([residual(found.p_RV[r], q_RV[r]) for r in rejected])
            tokens_R[rejected] = _draw(rest_RV, self._sampler.residual_noise(slots[rejected], positions[rejected]))
        judged = _Judged(tokens_R, found.failed, found.failures, choice.logprobs(*places, masks, tokens_R))
        for r in np.flatnonzero(~found.failed).tolist():
            self._sampler.record(int(slots[r]), int(positions[r]), [int(tokens_R[r])])
        return judged

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
        if number == 0:
            self._proposals.update({slot: [] for slot in slots.tolist()})
        open_ = self._chains.open(slots, number)
        drafts_S = np.full(len(slots), -1)
        if proposed_S is not None:
            drafts_S[open_] = legal_proposals(proposed_S[open_], masks_of(open_, masks))
            self._remember(slots[open_], positions[open_], drafts_S[open_], None)
        else:
            choice, greedy = self._sampler.rows(logits_SV), self._sampler.greedy(slots[open_])
            best, drawn = open_[greedy], open_[~greedy]
            sampled = choice.sample(best, slots[best], positions[best], masks_of(best, masks), logprobs=False)
            drafts_S[best] = sampled.token_ids
            found = choice.distributions(drawn, slots[drawn], positions[drawn], masks_of(drawn, masks))
            q_SV = found.p_RV.astype(np.float32)
            tokens = _draw(q_SV, self._sampler.draft_noise(slots[drawn], positions[drawn], number))
            drafts_S[drawn] = np.where(found.failed, -1, tokens)
            self._remember(slots[drawn], positions[drawn], drafts_S[drawn], q_SV)
        self._chains.extend(slots[drafts_S >= 0])
        return drafts_S

    def _remember(
        self, slots: np.ndarray, positions: np.ndarray, drafts_S: np.ndarray, q_SV: np.ndarray | None
    ) -> None:
        for s in np.flatnonzero(drafts_S >= 0).tolist():
            slot, token_id = int(slots[s]), int(drafts_S[s])
            self._sampler.record(slot, int(positions[s]), [token_id])
            self._proposals[slot].append(Proposal(token_id, None if q_SV is None else q_SV[s]))


def _draw(weights_RV: np.ndarray, noise_RV: np.ndarray) -> np.ndarray:
    """int64 [R]: a token of each row, with a chance proportional to its weight; `noise_RV` is Gumbel."""
    with np.errstate(divide="ignore"):
        return (np.log(weights_RV) + noise_RV).argmax(axis=1)
