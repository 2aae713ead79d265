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


class RowSampler(Protocol):
    """Sampling parameters, seeds and histories of all slots."""

    vocab_size: int
    num_slots: int

    def rows(self, logits_TV: Any) -> Rows: ...

    def record(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """These tokens stand at `position` …, and nothing after them."""


def is_legal(mask_W: np.ndarray, token_id: int) -> bool:
    """Whether bit `token_id % 32` of word `token_id // 32` is set."""
    return bool((int(mask_W[token_id >> 5]) >> (token_id & 31)) & 1)
