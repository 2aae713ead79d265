"""Invented loads of experts: tokens of every expert of a layer, step by step.

`zipf`: popularity falls as 1 / rank, the same in all steps but for chance. `bursty`: popularity differs by a factor of a few,
and now and then one expert is wanted 4 to 15 times as much for up to a dozen steps. `topics`: what is asked drifts between
six subjects with experts of their own, as in traffic of many users.

Legend: W steps · L layers · E experts.
"""

from collections.abc import Callable

import numpy as np

TOKENS = 8192 * 6  # (row, expert) pairs of a step: 8,192 rows with six experts each


def zipf(rng: np.random.Generator, steps: int, experts: int) -> np.ndarray:
    """Chances [W, E]."""
    return np.tile(rng.permutation(1 / np.arange(1, experts + 1)), (steps, 1))


def bursty(rng: np.random.Generator, steps: int, experts: int) -> np.ndarray:
    chance_WE = np.tile(rng.lognormal(0, 0.6, experts), (steps, 1))
    for _ in range(steps // 5):
        start, length = rng.integers(steps), rng.integers(1, 12)
        chance_WE[start : start + length, rng.integers(experts)] *= rng.uniform(4, 15)
    return chance_WE


def topics(rng: np.random.Generator, steps: int, experts: int, subjects: int = 6) -> np.ndarray:
    chance_SE = rng.lognormal(0, 1.0, (subjects, experts))
    chance_SE /= chance_SE.sum(1, keepdims=True)
    mood_S, weights = rng.normal(size=subjects), []
    for _ in range(steps):
        mood_S = 0.9 * mood_S + rng.normal(size=subjects) * 0.6
        weights.append(np.exp(1.2 * mood_S))
    weight_WS = np.array(weights)
    return weight_WS / weight_WS.sum(1, keepdims=True) @ chance_SE


LOADS: dict[str, Callable[..., np.ndarray]] = {"zipf": zipf, "bursty": bursty, "topics": topics}


def drawn(name: str, steps: int, layers: int, experts: int, *, seed: int = 0, tokens: int = TOKENS) -> np.ndarray:
    """Loads int64 [W, L, E]; layers differ."""
    rng = np.random.default_rng(seed)
    chances = [LOADS[name](rng, steps, experts) for _ in range(layers)]
    rows = [[rng.multinomial(tokens, p / p.sum()) for p in chance_WE] for chance_WE in chances]
    return np.array(rows, np.int64).swapaxes(0, 1).copy()
