"""Whether counts fit a distribution."""

import math

import numpy as np


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """p of the chi-square test (after Wilson and Hilferty, 1931); cells with fewer than 5 expected are put together."""
    assert (counts[probabilities == 0] == 0).all(), "an impossible token was drawn"
    expected = counts.sum() * probabilities
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    if freedom == 0:
        return 1.0
    statistic = ((observed - expected) ** 2 / expected).sum()
    spread = 2 / (9 * freedom)
    return 0.5 * math.erfc(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(2 * spread))
