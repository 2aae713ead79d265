"""How unevenly rows choose among experts where nobody measured it: a Zipf law, and ranks that hold what chance gives them."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

ZIPF = 0.5  # exponent of the popularity: expert i of the ranking is chosen as often as i^-ZIPF says


def busiest_rank(ranks: int, experts: int, seed: int = 0) -> "np.ndarray":
    """Share of all pairs that each expert gets, float64 [experts / ranks], on the rank that gets most.

    Experts lie on the ranks in an order drawn with a fixed seed.
    """
    import numpy as np  # a fifth of the time that planning for one rank takes

    weights = np.arange(1, experts + 1, dtype=np.float64) ** -ZIPF
    placed = np.random.default_rng(seed).permutation(weights / weights.sum()).reshape(ranks, -1)
    chosen: np.ndarray = placed[placed.sum(1).argmax()]
    return chosen


@lru_cache(maxsize=64)
def skewed_load(ranks: int, experts: int) -> float:
    """Pairs of a row and an expert that the busiest rank gets over those that its own rows make."""
    if ranks == 1 or experts % ranks:
        return 1.0
    return float(busiest_rank(ranks, experts).sum() * ranks)
