"""Ranks that are threads of one process: the collectives of `parallel.peers.Peers`, for tests that need no processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from deepinfer.parallel.peers import Pending

PATIENCE_S = 120.0


class Board:
    """Where the threads of one group put what they say, and wait for the others."""

    def __init__(self, size: int) -> None:
        self.size, self.said = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)

    def meet(self, rank: int, what: Any) -> list[Any]:
        """What everybody brought to this meeting."""
        self.said[rank] = what
        self.barrier.wait()
        heard = list(self.said)
        self.barrier.wait()
        return heard


class ThreadPeers:
    """A `Peers` whose calls are checked to be the same on all ranks. `exchange` waits at once."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.size = board, rank, board.size

    def _meet(self, name: str, what: Tensor) -> list[Tensor]:
        heard = self.board.meet(self.rank, (name, what))
        assert {said for said, _ in heard} == {name}, (
            f"ranks do not agree on what they do: {[said for said, _ in heard]}"
        )
        return [x for _, x in heard]

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.stack(self._meet(f"all_gather {tuple(x.shape)} {x.dtype}", x.clone()))

    def begin_all_gather(self, x: Tensor) -> Pending:
        gathered = self.all_gather(x)
        return lambda: gathered

    def all_to_all(self, x: Tensor) -> Tensor:
        return torch.stack(
            [each[self.rank] for each in self._meet(f"all_to_all {tuple(x.shape)} {x.dtype}", x.clone())]
        )

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Pending:
        assert len(rows) == sum(send) and len(send) == len(receive) == self.size, "rows of each rank"
        parts = rows.clone().split(list(send))
        heard = self.board.meet(self.rank, (f"exchange {tuple(rows.shape[1:])} {rows.dtype}", parts))
        assert len({said for said, _ in heard}) == 1, f"ranks do not agree on what they do: {[s for s, _ in heard]}"
        mine = [parts[self.rank] for _, parts in heard]
        assert [len(part) for part in mine] == list(receive), "received counts equal sent counts"
        return lambda: torch.cat(mine)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        return self._meet(f"broadcast {tuple(x.shape)} {x.dtype} {source}", x.clone())[source]


def run_ranks(size: int, rank: Callable[[ThreadPeers], Any]) -> list[Any]:
    """Run one function as every rank of a group; results by rank. The first fault ends all of them."""
    board = Board(size)

    def run(number: int) -> Any:
        torch.set_num_threads(1)  # OpenMP counts by calling thread; ranks have the processors to share
        try:
            return rank(ThreadPeers(board, number))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, number) for number in range(size)]
    faults = [error for future in futures if (error := future.exception()) is not None]
    own = [error for error in faults if not isinstance(error, threading.BrokenBarrierError)]
    if faults:
        raise (own or faults)[0]
    return [future.result() for future in futures]
