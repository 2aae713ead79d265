"""Context parallelism: the rows of a step with prompts are divided among ranks, each of which keeps the complete caches.

Queries stay with their rows. What later rows need of others, window keys and inputs of the compressors, is gathered, so that
every rank writes all entries and selects among all of them: no softmax is ever merged, and bits are those of one rank.

Legend: T rows of a step, on all ranks · G gathered rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.parallel.equal_shares import GatheredRows

if TYPE_CHECKING:
    from deepinfer.interfaces import StepInput
    from deepinfer.parallel.peers import Peers

LEAST_ROWS = 32  # of one sequence: below that a step is over sooner than its rows are gathered; verify rows stay below
# On a GPU, where shorter steps are graphs that all ranks replay alike. A divided step is launched operation by operation, which
# takes some 25 ms at 40 layers: as long as an H200 needs for half as many rows of V4.1-Flash. Reckoned, not measured.
DEVICE_LEAST_ROWS = 1024


class ContextDivision:
    """Divides each step that has at least `least_rows` rows of one sequence; others run on all ranks alike."""

    def __init__(self, peers: Peers, least_rows: int = LEAST_ROWS) -> None:
        self.peers, self._least_rows = peers, max(least_rows, 2 * peers.size)

    def divide(self, step: StepInput) -> RowShares | None:
        """See `model.division.RowDivision`."""
        lengths_S = np.diff(step.row_starts)
        if not self.divides(lengths_S):
            return None
        return RowShares(owners(step, lengths_S >= self._least_rows, self.peers.size), self.peers)

    def divides(self, rows_S: np.ndarray) -> bool:
        """See `model.division.RowDivision`."""
        return self.peers.size > 1 and bool((rows_S >= self._least_rows).any())


class RowShares:
    """See `model.division.Shares`."""

    def __init__(self, owner_T: np.ndarray, peers: Peers) -> None:
        self.owner_T, self._peers = owner_T, peers
        self.here = np.flatnonzero(owner_T == peers.rank)

    def only(self, kept: np.ndarray) -> RowShares:
        return RowShares(self.owner_T[kept], self._peers)

    def gather(self, rows: np.ndarray) -> GatheredRows:
        owner_G = self.owner_T[rows]
        mine = np.searchsorted(self.here, rows[owner_G == self._peers.rank])
        return GatheredRows(self._peers, mine, owner_G)


def owners(step: StepInput, long_S: np.ndarray, size: int) -> np.ndarray:
    """Rank [T] of each row: long sequences one by one, rows of all others together.

    Of a prompt those rows that later layers drop are divided by themselves, so that what goes on is even too.
    """
    lengths_S = np.diff(step.row_starts)
    segment_T = np.where(np.repeat(long_S, lengths_S), 2 * np.repeat(np.arange(len(lengths_S)), lengths_S), -1)
    if step.upper_from is not None:
        segment_T += (segment_T >= 0) & (step.positions >= np.repeat(step.upper_from, lengths_S))
    owner_T, first_rank = np.empty(len(segment_T), dtype=np.int64), 0
    for segment in np.unique(segment_T):
        rows = np.flatnonzero(segment_T == segment)
        owner_T[rows] = (zigzag(len(rows), size) + first_rank) % size
        first_rank += len(rows) % size  # who begins the next segment: rows that do not come out even go round
    return owner_T


def zigzag(count: int, size: int) -> np.ndarray:
    """Rank [count] of the rows of a run cut into 2 · size pieces, whose lengths differ by one at most.

    Rank r has pieces r and 2 · size - 1 - r: one of the first, which see little, and one of the last. Ranks from 0 on have the
    rows that do not come out even.
    """
    least, over = divmod(count, 2 * size)
    rank_P = np.concatenate((np.arange(size), np.arange(size)[::-1]))
    turn_P = np.concatenate((np.arange(size), size + np.arange(size)[::-1]))  # in which order pieces get a row more
    return np.repeat(rank_P, least + (turn_P < over))


def attention_work(positions_T: np.ndarray, owner_T: np.ndarray, size: int) -> np.ndarray:
    """Keys [size] that the rows of each rank may see, all together: what causal attention and its indexer cost."""
    return np.bincount(owner_T, weights=positions_T + 1, minlength=size)
