"""Log probabilities of one row, in float64 from float32 logits. V vocabulary · k best tokens."""

from __future__ import annotations

import numpy as np

from deepinfer.interfaces import TokenLogprobs
from deepinfer.sampling.filters import best


def log_softmax(scores_V: np.ndarray) -> np.ndarray:
    """float64 [V]; entries of -inf stay so. One entry at least is finite, none is NaN or +inf."""
    shifted_V = scores_V.astype(np.float64) - np.float64(scores_V.max())
    return shifted_V - np.log(np.exp(shifted_V).sum())


def token_logprobs(logprobs_V: np.ndarray, token_id: int, k: int) -> TokenLogprobs:
    """The chosen token, then the k best others. Among equals the lower id ranks first."""
    chosen = logprobs_V[token_id]
    rank = 1 + np.count_nonzero(logprobs_V > chosen) + np.count_nonzero(logprobs_V[:token_id] == chosen)
    others = best(logprobs_V, k + 1) if k else np.empty(0, np.int64)
    others = others[others != token_id][:k]
    ids = np.concatenate([[token_id], others]).astype(np.int64)
    return TokenLogprobs(token_ids=ids, logprobs=logprobs_V[ids].astype(np.float32), rank=int(rank))
