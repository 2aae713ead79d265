"""Rows to experts of other ranks through buffers of fixed size: what decode steps and smaller chunks do, inside of graphs.

How many rows a rank has, and where they go, only its device knows. So there is room for as many rows as the rank with most of
them has, C, everywhere: every rank gets all rows, and picks those out whose slots it holds, where the device counts and sorts
them. Rows that are none are bytes 0xFF: their slots are -1. Shapes follow from C alone, and nothing waits for the device.

Reproducible: the result of each (row, chosen expert) pair has a place of its own on the way back, and is added up at home in
the router's order. Otherwise each rank sums what it has of a row first.

Legend: T rows at home ≤ C · R ranks · M = R · C · X chosen experts of a row · D hidden · P pairs · B bytes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.model.fused.dispatch import Parts
from deepinfer.ops.expert_permutation import Permutation
from deepinfer.parallel.peers import Peers
from deepinfer.parallel.row_messages import NOBODY

Serve = Callable[
    [Tensor], tuple[Tensor, Permutation]
]  # rows [M, B] that came → results [P, D] of pairs here, and pairs
Combine = Callable[[Tensor, Tensor, None], Tensor]  # `DeviceOps.combine`


class FixedStep:
    """The exchanges of one step's layers: up to `rows` rows on each of `size` ranks."""

    def __init__(self, rows: int, size: int, *, device: torch.device, reproducible: bool, combine: Combine) -> None:
        self.rows, self.size, self.reproducible, self._combine = rows, size, reproducible, combine
        self._row_C1 = torch.arange(rows, dtype=torch.int32, device=device).unsqueeze(1)
        self._places_of: dict[int, Tensor] = {}  # by columns
        self._nobodys: dict[int, Tensor] = {}  # by bytes of a row

    def start(
        self, peers: Peers, message_TB: Tensor, slots_TX: Tensor, slots_per_rank: int, serve: Serve
    ) -> Callable[[], Parts]:
        arriving = peers.begin_all_gather(self._filled(message_TB))

        def finish() -> Parts:
            results = self._served(peers, arriving(), serve)
            return Parts(results, self._places(slots_TX, slots_per_rank))

        return finish

    def serve(self, peers: Peers, nobody_1B: Tensor, chosen: int, serve: Serve) -> None:
        """The same without rows. `nobody_1B`: a row that is none."""
        width = nobody_1B.shape[1]
        if width not in self._nobodys:
            self._nobodys[width] = nobody_1B.expand(self.rows, -1).contiguous()
        self._served(peers, peers.begin_all_gather(self._nobodys[width])(), serve)

    def _filled(self, message_TB: Tensor) -> Tensor:
        """[C, B]"""
        spare = self.rows - len(message_TB)
        assert spare >= 0, f"{len(message_TB)} rows in a step that was begun for {self.rows}"
        if not spare:
            return message_TB
        return torch.cat((message_TB, message_TB.new_full((spare, message_TB.shape[1]), NOBODY)))

    def _served(self, peers: Peers, came_RCB: Tensor, serve: Serve) -> Tensor:
        """What became of this rank's rows: results [R · C · X, D], or sums [R · C, D]."""
        parts_PD, pairs = serve(came_RCB.flatten(0, 1))
        if self.reproducible:  # a pair that is elsewhere gets some row, which nobody reads
            back = parts_PD.index_select(0, pairs.places_TX.clamp(min=0).view(-1))
        else:
            back = self._combine(parts_PD, pairs.places_TX, None)
        sent = back.view(torch.uint8).unflatten(0, (self.size, -1))
        return peers.all_to_all(sent).flatten(0, 1).view(parts_PD.dtype)

    def _places(self, slots_TX: Tensor, slots_per_rank: int) -> Tensor:
        """int32 [T, X] or [T, R]: where each part of a row lies among what came back."""
        rows, chosen = slots_TX.shape
        if not self.reproducible:
            return self._columns(self.size, 1, self.rows)[:rows]
        rank_TX = slots_TX.div(slots_per_rank, rounding_mode="floor")
        own_TX = self._columns(chosen, chosen, 1)[:rows]
        return torch.add(own_TX, rank_TX, alpha=self.rows * chosen)  # below 0 where the row is nobody's

    def _columns(self, columns: int, by_row: int, by_column: int) -> Tensor:
        """int32 [C, columns]: row · by_row + column · by_column, made once a step."""
        if columns not in self._places_of:
            column = torch.arange(columns, dtype=torch.int32, device=self._row_C1.device)
            self._places_of[columns] = self._row_C1 * by_row + column * by_column
        return self._places_of[columns]
