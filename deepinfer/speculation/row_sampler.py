"""What verification needs of a sampler, so that neither room imports the other.

T rows of logits · R of them asked for · V vocabulary · W words of a mask, 32 tokens each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deepinfer.interfaces import TokenLogprobs


class Sampled(Protocol):
    """One token for each of R rows."""

    token_ids: np.ndarray  # int64 [R]; -1 where failed
    failed: np.ndarray  # bool [R]
    failures: dict[int, str]  # r → why
    logprobs: dict[int, TokenLogprobs]  # r → only where asked


class Distributions(Protocol):
    """What the tokens of R rows are drawn from."""

    p_RV: np.ndarray  # float64; each row sums to 1, or is zero where failed
    failed: np.ndarray  # bool [R]
    failures: dict[int, str]  # r → why


class Rows(Protocol):
    """The logits of a forward pass."""

    def sample(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray] | None = None,
        *,
        logprobs: bool = True,
    ) -> Sampled:
        """One token for each of `rows` (int64 [R]) with the noise of the target's own samples; `masks`: r → uint32 [W].

        A token stands in its sequence's history from then on, and nothing after it.
        """

    def distributions(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray] | None = None,
    ) -> Distributions:
        """What `sample` would draw from, for slots that are not greedy; writes no history."""

    def logprobs(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray],
        token_ids: np.ndarray,
    ) -> dict[int, TokenLogprobs]:
        """r → log probabilities, where asked, of tokens (-1: none) that do not stand in the history yet."""


class RowSampler(Protocol):
    """Sampling parameters, seeds and histories of all slots."""

    vocab_size: int
    num_slots: int

    def rows(self, logits_TV: Any) -> Rows: ...

    def greedy(self, slots: np.ndarray) -> np.ndarray:
        """bool [R]"""

    def coins(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Uniforms in (0, 1), float64 [R]; one a position."""

    def draft_noise(self, slots: np.ndarray, positions: np.ndarray, number: int) -> np.ndarray:
        """Gumbel noise, float64 [R, V]; another one for each number of a draft."""

    def residual_noise(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Gumbel noise, float64 [R, V]."""

    def record(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """These tokens stand at `position` …, and nothing after them."""


def masks_of(some: np.ndarray, masks: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The masks of some of the sequences, by index into `some`."""
    return {i: masks[s] for i, s in enumerate(some.tolist()) if s in masks} if masks else {}


def legal_proposals(proposed_S: np.ndarray, masks: Mapping[int, np.ndarray]) -> np.ndarray:
    """The proposals, -1 where the mask of a sequence (s → uint32 words) rules one out."""
    legal_S = proposed_S.copy()
    for s, mask_W in masks.items():
        if legal_S[s] >= 0 and not is_legal(mask_W, int(legal_S[s])):
            legal_S[s] = -1
    return legal_S


def is_legal(mask_W: np.ndarray, token_id: int) -> bool:
    """Whether bit `token_id % 32` of word `token_id // 32` is set."""
    return bool((int(mask_W[token_id >> 5]) >> (token_id & 31)) & 1)
