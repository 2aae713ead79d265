"""Drafters that bring what a test wants, put into a built engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deepinfer.engine.build import EngineGraph
from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.interfaces import Drafter, Drafts, StepInput


def local_executor(graph: EngineGraph) -> LocalExecutor:
    executor = getattr(graph.executor, "inner", graph.executor)
    assert isinstance(executor, LocalExecutor)
    return executor


def plant(graph: EngineGraph, drafter: Drafter) -> None:
    """Before the first step."""
    local_executor(graph).drafter = drafter


class KnownDrafts:
    """Knows what the answers will be; some drafts are wrong on purpose, the choice of which is drawn from `seed`."""

    needs_features = False

    def __init__(
        self, texts: list[list[int]], depth: int, vocab_size: int, *, right: float = 0.8, seed: int = 0
    ) -> None:
        self.texts = [np.array(text) for text in texts]
        self.depth, self.vocab_size, self.right = depth, vocab_size, right
        self.rng = np.random.default_rng(seed)

    def observe(self, step: StepInput, features_TF: object) -> None:
        pass

    def draft(
        self, slots: np.ndarray, tokens_NL: np.ndarray, num_tokens: np.ndarray, pad: int, choose: Callable
    ) -> Drafts:
        wanted_SK = np.stack(
            [self._next(tokens_NL[slot, pad : pad + n]) for slot, n in zip(slots.tolist(), num_tokens.tolist())]
        )
        wrong_SK = self.rng.random(wanted_SK.shape) > self.right
        wanted_SK[wrong_SK] = self.rng.integers(3, self.vocab_size, int(wrong_SK.sum()))
        chosen = [choose(k, None, proposed_S=wanted_SK[:, k]) for k in range(self.depth)]
        return Drafts(np.stack(chosen, axis=1), self.rng.random(wanted_SK.shape).astype(np.float32))

    def _next(self, seen: np.ndarray) -> np.ndarray:
        """int64 [K]: what follows in the first text that begins so; -1 behind its end."""
        found = np.full(self.depth, -1, dtype=np.int64)
        for text in self.texts:
            if len(text) > len(seen) and (text[: len(seen)] == seen).all():
                rest = text[len(seen) : len(seen) + self.depth]
                found[: len(rest)] = rest
                break
        return found


class GarbageDrafts:
    """Any tokens, holes in their middle, any confidence: NaN, infinite, negative. Asks nobody what it may propose."""

    needs_features = False

    def __init__(self, depth: int, vocab_size: int, seed: int = 0) -> None:
        self.depth, self.vocab_size, self.rng = depth, vocab_size, np.random.default_rng(seed)
        self.num_holes = 0

    def observe(self, step: StepInput, features_TF: object) -> None:
        pass

    def draft(
        self, slots: np.ndarray, tokens_NL: np.ndarray, num_tokens: np.ndarray, pad: int, choose: Callable
    ) -> Drafts:
        shape = (len(slots), self.depth)
        tokens_SK = self.rng.integers(0, self.vocab_size, shape)
        tokens_SK[self.rng.random(shape) < 0.15] = -1
        self.num_holes += int((tokens_SK < 0).sum())
        any_SK = self.rng.choice([np.nan, np.inf, -np.inf, -1.0, 0.0, 0.5, 1.0, 7.0], shape)
        return Drafts(tokens_SK, any_SK.astype(np.float32))


class ShuffledDrafts:
    """Another drafter's, dealt out anew: drafts and confidences of one sequence to another, and in another order."""

    def __init__(self, inner: Drafter, seed: int = 0) -> None:
        self.inner, self.depth, self.needs_features = inner, inner.depth, inner.needs_features
        self.rng = np.random.default_rng(seed)

    def observe(self, step: StepInput, features_TF: object) -> None:
        self.inner.observe(step, features_TF)

    def draft(self, slots: np.ndarray, *others: object) -> Drafts:
        made = self.inner.draft(slots, *others)
        rows, columns = self.rng.permutation(len(slots)), self.rng.permutation(self.depth)
        return Drafts(made.token_ids[rows][:, columns], made.confidence[:, columns[::-1]])
