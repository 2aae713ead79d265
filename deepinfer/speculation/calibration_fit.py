"""Fitting and judging the confidence of drafts on held-out blocks. NumPy alone.

A block is one round: K raw confidences (logits), and whether each draft was accepted *together with all before it*. What a
position's confidence means is the chance given that all before it were accepted, so position k is fitted on the blocks that
reached it, and judged by the product up to k against what was accepted up to k.

Shapes: B blocks · K positions.
"""

from __future__ import annotations

import numpy as np

BINS = 20
RIDGE = 1.0  # pulls to scale 1 and offset 0 like as much evidence as one block; matters only where blocks are few
STEPS = 50


def sigmoid(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-logits))


def fit_position(logits_B: np.ndarray, accepted_B: np.ndarray, ridge: float = RIDGE) -> tuple[float, float]:
    """(scale, offset) that minimise the log loss of sigmoid(scale · logit + offset), by Newton's method.

    `accepted_B` are 0 and 1, or the chances themselves (the overlap of the two distributions).
    """
    design_B2 = np.stack((logits_B, np.ones_like(logits_B)), axis=1).astype(np.float64)
    prior_2 = np.array([1.0, 0.0])
    weights_2, loss = prior_2.copy(), np.inf
    for _ in range(STEPS):
        chance_B = sigmoid(design_B2 @ weights_2)
        gradient_2 = design_B2.T @ (chance_B - accepted_B) + ridge * (weights_2 - prior_2)
        curvature_22 = (design_B2 * (chance_B * (1 - chance_B))[:, None]).T @ design_B2 + ridge * np.eye(2)
        step_2, size = np.linalg.solve(curvature_22, gradient_2), 1.0
        while (now := _loss(design_B2, accepted_B, weights_2 - size * step_2, ridge, prior_2)) > loss and size > 1e-6:
            size /= 2
        weights_2, loss = weights_2 - size * step_2, min(loss, now)
        if np.abs(size * step_2).max() < 1e-9:
            break
    return float(weights_2[0]), float(weights_2[1])


def fit_block(logits_BK: np.ndarray, accepted_BK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(scale [K], offset [K]). `accepted_BK` bool: this draft and all before it were accepted.

    Drafts after an accepted end of the sequence were never judged: give such blocks NaN logits there, they are left out.
    """
    reached_BK = np.concatenate((np.ones((len(accepted_BK), 1), bool), accepted_BK[:, :-1]), axis=1)
    reached_BK &= np.isfinite(logits_BK)
    fits = [
        fit_position(logits[reached], accepted[reached].astype(np.float64))
        for logits, accepted, reached in zip(logits_BK.T, accepted_BK.T, reached_BK.T)
    ]
    scale, offset = (np.array(column) for column in zip(*fits))
    return scale, offset


def survival(chance_BK: np.ndarray) -> np.ndarray:
    """The chance that a draft and all before it are accepted [B, K]."""
    return np.cumprod(chance_BK, axis=1)


def calibration_error(chance_B: np.ndarray, accepted_B: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error: mean distance of predicted and observed chance over equal bins of [0, 1], by their weight."""
    bin_B = np.minimum((chance_B * bins).astype(np.int64), bins - 1)
    gap = np.bincount(bin_B, weights=chance_B - accepted_B, minlength=bins)
    return float(np.abs(gap).sum() / max(1, len(chance_B)))


def bootstrap_interval(
    chance_B: np.ndarray,
    accepted_B: np.ndarray,
    group_B: np.ndarray,
    *,
    seed: int,
    draws: int = 200,
    coverage: float = 0.95,
    bins: int = BINS,
) -> tuple[float, float]:
    """Interval of the calibration error when whole groups (sequences) are drawn anew.

    Blocks of a sequence resemble each other, so drawing single blocks would promise too much.
    """
    _, member_B = np.unique(group_B, return_inverse=True)
    num_groups = int(member_B.max()) + 1
    cell_B = member_B * bins + np.minimum((chance_B * bins).astype(np.int64), bins - 1)
    gap_GC = np.bincount(cell_B, weights=chance_B - accepted_B, minlength=num_groups * bins).reshape(-1, bins)
    size_G = np.bincount(member_B)
    times_DG = np.random.default_rng(seed).multinomial(num_groups, np.full(num_groups, 1 / num_groups), size=draws)
    errors = np.abs(times_DG @ gap_GC).sum(1) / (times_DG @ size_G)
    low, high = np.quantile(errors, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def error_floor(chance_B: np.ndarray, *, seed: int, draws: int = 100, bins: int = BINS) -> float:
    """Calibration error that these chances would show if they were perfect: what so few blocks cannot resolve."""
    rng = np.random.default_rng(seed)
    return float(
        np.mean([calibration_error(chance_B, rng.random(len(chance_B)) < chance_B, bins) for _ in range(draws)])
    )


def _loss(
    design_B2: np.ndarray, accepted_B: np.ndarray, weights_2: np.ndarray, ridge: float, prior_2: np.ndarray
) -> float:
    logits_B = design_B2 @ weights_2
    log_loss = np.logaddexp(0.0, logits_B) - accepted_B * logits_B
    return float(log_loss.sum() + 0.5 * ridge * np.square(weights_2 - prior_2).sum())
