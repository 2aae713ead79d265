"""N-gram tables whose rows are spread over ranks: each holds a run of every table, and asks the others for what it lacks.

A lookup costs three collectives, whatever a rank asks for: how many rows, their ids, the rows. An id that several tokens of a
step need is asked for once.

Legend: T tokens · R rows of a token · U different ids · N rows of a table here · F numbers of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.ops import Ops
from deepinfer.parallel.peers import Peers
from deepinfer.parallel.row_bytes import RowBytes


class SpreadTables:
    """The `NgramTables` of one rank. `bounds[t]`: ranks hold rows bounds[t][r] : bounds[t][r + 1] of table t."""

    def __init__(self, peers: Peers, ops: Ops, bounds: Sequence[Sequence[int]], *, numerics: str) -> None:
        assert all(len(edges) == peers.size + 1 for edges in bounds), "a run of rows for each rank"
        self.peers, self.bounds = peers, bounds
        self.rows = RowBytes(ops, packed=numerics == "full")  # what is read is rounded to FP8 before anything else

    def table(self, number: int, rows_NF: Tensor) -> "SpreadRows":
        edges, rank = self.bounds[number], self.peers.rank
        assert len(rows_NF) == edges[rank + 1] - edges[rank], f"rows of table {number} that belong to this rank"
        return SpreadRows(self.peers, self.rows, rows_NF, torch.tensor(edges))


class SpreadRows:
    """The `RowLookup` of one table."""

    def __init__(self, peers: Peers, rows: RowBytes, rows_NF: Tensor, edges: Tensor) -> None:
        self.peers, self.rows, self.rows_NF, self.edges = peers, rows, rows_NF, edges

    def __call__(self, rows_TR: Tensor) -> Tensor:
        peers, dtype = self.peers, self.rows_NF.dtype
        ids_U, place_TR = rows_TR.unique(return_inverse=True)  # sorted, and so by the rank that has them
        ask = torch.searchsorted(ids_U, self.edges).diff()
        give = peers.all_to_all(ask)
        asked, given = ask.tolist(), give.tolist()
        wanted = peers.exchange(ids_U.unsqueeze(1), asked, given)().squeeze(1) - self.edges[peers.rank]
        found = peers.exchange(self.rows.pack(self.rows_NF[wanted]), given, asked)()
        return self.rows.unpack(found, dtype, place_TR.flatten()).unflatten(0, rows_TR.shape)
