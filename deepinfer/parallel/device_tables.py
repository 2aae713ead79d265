"""N-gram tables spread over ranks for the fused model: each rank holds a run of rows of every table, on its device or its host.

Steps of up to `most_rows` rows take buffers of fixed size, as graphs need them: every rank sees what all ask for, answers what
it has, and picks out of the answers those of the rank that has each row. Longer steps ask each rank for what it has alone, once
for each row, by numbers that the host reads. All ranks know which, since they agreed upon the rows of a step.

Rows travel as the numbers that they stand for, which bfloat16 holds exactly.

Legend: T rows of a step here ≤ C · R table rows of each · U different ones · N rows of a table here · K columns of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from deepinfer.model.fused.rehearsal import is_rehearsal
from deepinfer.parallel.device_dispatch import MOST_ROWS
from deepinfer.parallel.progress import Progress
from deepinfer.parallel.rehearsed_peers import RehearsedPeers
from deepinfer.parallel.row_bytes import as_bytes, from_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.fused.tables import Found
    from deepinfer.parallel.peers import Peers

NOBODYS = -1  # a row that nobody has
FIXED_BYTES = 1 << 30  # that answers of fixed size may take on their way, those of other ranks' rows and one's own


class DeviceTables:
    """The `FusedTables` of one rank; `peers` talk where the model computes, `device`. `bounds[t]`: ranks hold rows
    bounds[t][r] : bounds[t][r + 1] of table t. Before anything is captured all ranks run a step without a graph."""

    def __init__(
        self,
        peers: Peers,
        bounds: Sequence[Sequence[int]],
        *,
        device: torch.device | str = "cpu",
        most_rows: int = MOST_ROWS,
    ) -> None:
        """`most_rows` as `most_fixed_rows` says; the same on all ranks."""
        assert all(len(edges) == peers.size + 1 for edges in bounds), "a run of rows for each rank"
        self.bounds, self.device, self.most_rows = bounds, torch.device(device), most_rows
        self.progress = Progress(self.device)  # whoever deals with all that is elsewhere sets one for all
        self._peers, self._rehearsed = peers, RehearsedPeers(peers.rank, peers.size)
        self.rows = most_rows + 1  # of the step that was begun last

    @property
    def peers(self) -> Peers:
        return self._rehearsed if is_rehearsal() else self._peers

    def begin(self, rows: int, live_1: Tensor | None = None) -> None:
        """Padding asks too, for rows that nobody looks at."""
        self.rows = rows

    def table(self, number: int, found: Found, num_rows: int, rows_of_each: int) -> DeviceLookup:
        first, end = self.bounds[number][self._peers.rank : self._peers.rank + 2]
        assert num_rows == end - first, f"rows of table {number} that belong to this rank"
        return DeviceLookup(self, number, found, rows_of_each)


def most_fixed_rows(size: int, numbers: int) -> int:
    """For how many rows of a step answers of fixed size are worth their memory, among `size` ranks and with so many `numbers`
    of n-gram memory a row: it grows with both."""
    return min(MOST_ROWS, FIXED_BYTES // (2 * torch.bfloat16.itemsize * numbers * size))


class DeviceLookup:
    """The `FusedLookup` of one table."""

    def __init__(self, tables: DeviceTables, number: int, found: Found, rows_of_each: int) -> None:
        self.tables, self._found, self._rows_of_each = tables, found, rows_of_each
        self._edges = torch.tensor(tables.bounds[number], device=tables.device)

    def __call__(self, rows_TR: Tensor) -> Tensor:
        self.tables.progress.begin()
        found = self._fixed(rows_TR) if self.tables.rows <= self.tables.most_rows else self._split(rows_TR)
        self.tables.progress.end()
        return found

    def serve(self) -> None:
        self(torch.empty(0, self._rows_of_each, dtype=torch.int64, device=self.tables.device))

    def _fixed(self, rows_TR: Tensor) -> Tensor:
        peers, (count, each), room = self.tables.peers, rows_TR.shape, self.tables.rows
        assert count <= room, f"{count} rows in a step that was begun for {room}"
        asked_CR = torch.cat((rows_TR, rows_TR.new_full((room - count, each), NOBODYS))) if count < room else rows_TR
        came_MR = peers.begin_all_gather(asked_CR)().flatten(0, 1)
        answers = as_bytes(self._here(came_MR)).unflatten(0, (peers.size, room))
        back_PK = from_bytes(peers.all_to_all(answers).view(peers.size * room * each, -1), torch.bfloat16)
        own_TR = torch.arange(count * each, device=rows_TR.device).view(count, each)
        return _rows(back_PK, self._owners(rows_TR) * (room * each) + own_TR)

    def _split(self, rows_TR: Tensor) -> Tensor:
        peers = self.tables.peers
        rows_U, place_TR = rows_TR.unique(return_inverse=True)  # sorted, and so by the rank that has them
        ask = torch.searchsorted(rows_U, self._edges).diff()
        asked, given = torch.stack((ask, peers.all_to_all(ask))).tolist()
        wanted = peers.exchange(rows_U.unsqueeze(1), asked, given)()
        answers_UB = peers.exchange(as_bytes(self._here(wanted)), given, asked)()
        return _rows(from_bytes(answers_UB, torch.bfloat16), place_TR)

    def _owners(self, rows_TR: Tensor) -> Tensor:
        """Rank of each row."""
        return torch.bucketize(rows_TR, self._edges[1:-1], right=True)

    def _here(self, rows_MR: Tensor) -> Tensor:
        """bfloat16 [M, R · K], zeros for rows of others."""
        first, end = self._edges[self.tables.peers.rank], self._edges[self.tables.peers.rank + 1]
        return self._found(torch.where((rows_MR >= first) & (rows_MR < end), rows_MR - first, NOBODYS))


def _rows(of_PK: Tensor, place_TR: Tensor) -> Tensor:
    """[T, R · K]"""
    count, each = place_TR.shape
    return of_PK.index_select(0, place_TR.flatten()).view(count, each * of_PK.shape[1])
