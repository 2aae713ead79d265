"""A model whose logits are a table, with a drafter that knows a wrong one: what decides the law of a whole engine is real.

Scheduler, loop, executor, decode state, verifier, sampler and budget are the engine's; there are no weights and no caches.

Legend: V vocabulary · T rows · S sequences · K drafts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from toy_executor import SomeDrafts

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import Drafts, StepInput, VerifyLengths
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.rejection import RejectionVerifier

SIZE = 8
RNG = np.random.default_rng(5)
TARGET_UVV = (RNG.normal(size=(SIZE, SIZE, SIZE)) * 1.5).astype(np.float32)  # logits after tokens (u, v)
DRAFTER_UVV = TARGET_UVV + RNG.normal(size=(SIZE, SIZE, SIZE)).astype(np.float32)


class TableModel:
    """Its hidden rows are the two newest tokens of each row."""

    def forward(self, step: StepInput, cache: object) -> torch.Tensor:
        return torch.from_numpy(step.ngram_ids[:, 1::-1].copy())

    def logits(self, hidden_T2: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(TARGET_UVV[tuple(hidden_T2.numpy().T)])


class TableDrafter:
    """Its confidences are the acceptance it may expect: they tell of the drafts before, as those of a trained head do."""

    needs_features = False

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def observe(self, step: StepInput, features_TF: object) -> None:
        pass

    def draft(
        self, slots: np.ndarray, tokens_NL: np.ndarray, num_tokens: np.ndarray, pad: int, choose: Callable
    ) -> Drafts:
        newest = [tokens_NL[slots, pad + num_tokens - back].astype(np.int64) for back in (2, 1)]
        made = Drafts(np.full((len(slots), self.depth), -1, np.int64), np.zeros((len(slots), self.depth), np.float32))
        for k in range(self.depth):
            logits_SV = DRAFTER_UVV[newest[-2], newest[-1]]
            overlap_S = np.minimum(softmax(logits_SV), softmax(TARGET_UVV[newest[-2], newest[-1]])).sum(-1)
            made.token_ids[:, k] = choose(k, logits_SV)
            made.confidence[:, k] = overlap_S
            newest.append(made.token_ids[:, k])
        return made


def softmax(logits_SV: np.ndarray) -> np.ndarray:
    weights = np.exp(logits_SV.astype(np.float64) - logits_SV.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def table_engine(
    *,
    verify: str = "rejection",
    depth: int = 3,
    async_depth: int = 0,
    lengths: VerifyLengths | None = None,
    max_num_seqs: int = 32,
) -> Engine:
    """`depth` 0 is plain sampling; else so many drafts are made, and `lengths` (some of them, changing) are checked."""
    limits = EngineLimits(
        vocab_size=SIZE,
        ngram_size=2,
        max_model_len=64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (depth + 2),
        max_prefill_tokens=max_num_seqs,
        num_blocks=2 * max_num_seqs,
        block_tokens=64,
        async_depth=async_depth,
        draft_depth=depth,
    )
    sampler = Sampler(SIZE, max_num_seqs)
    local = LocalExecutor(
        TableModel(),
        None,
        sampler,
        (RejectionVerifier if verify == "rejection" else CoupledVerifier)(sampler),
        DecodeState(max_num_seqs, limits.max_model_len, limits.ngram_size, depth),
        drafter=TableDrafter(depth) if depth else None,
        threads=torch.get_num_threads(),
    )
    if depth and lengths is None:
        lengths = SomeDrafts()
    return Engine(ThreadedExecutor(local) if async_depth else local, limits, lengths=lengths if depth else None)
