"""The balancer of one rank: counts loads, plans a placement beside the steps, and moves experts between them.

All ranks of an expert group call `after_step` after the same steps with the same word, so that all do the same at the same
step; nothing else is agreed upon.

Legend: W steps of a window · L layers · P slots of all ranks.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from deepinfer.parallel.eplb.loads import LoadWindow
from deepinfer.parallel.eplb.moves import ExpertSlots, Mover
from deepinfer.parallel.eplb.policy import balance, peak_and_mean, rank_loads
from deepinfer.parallel.eplb.saved import Saved, write_placement
from deepinfer.parallel.eplb.told import told
from deepinfer.parallel.placement import Placement

if TYPE_CHECKING:
    from pathlib import Path

    from deepinfer.parallel.peers import Peers

GATHER, BALANCE, FINISH = 1, 2, 3  # add up loads; and plan a placement; and move everything before the next step
PLAN_STEPS = 4  # a placement is taken up so many steps after its loads were added up, wherever it is ready by then


class BalancerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a balancer is at; `print` shows it as a table. Loads are those that were added up last, summed over layers, under
    the present placement."""

    num_steps: int
    num_rebalances: int
    num_ranks: int
    placement: list[list[int]]  # [L][P]: the expert in every slot, rank by rank
    window_steps: int  # of the loads
    peak_tokens: float  # Σ over steps of the rows of the most loaded rank
    mean_tokens: float  # … of a rank on average; as much as the peak would be perfect
    rank_tokens: list[float]  # … of each rank
    planning: bool
    moves_left: int  # experts that still travel between ranks
    moved: int  # experts that have, since the start
    moved_bytes: int

    @property
    def at_rest(self) -> bool:
        """Whether what was asked for is done: nothing is being planned, and every expert is where it shall be."""
        return not self.planning and self.moves_left == 0

    def __str__(self) -> str:
        return "\n".join(told(self))


class EplbBalancer:
    """`slots` hold the experts of this rank. `interval_steps` 0: only when asked."""

    def __init__(
        self,
        slots: ExpertSlots,
        peers: Peers,
        *,
        interval_steps: int,
        window_steps: int,
        budget_bytes: int,
        min_gain: float,
        load_WLE: np.ndarray | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        """`load_WLE`: loads of all ranks together, kept from an earlier run. Raises ValueError where ranks begin with different
        placements, as from different files."""
        _agree(peers, slots.placement.expert_LP, device)
        layers, experts = len(slots.placement.expert_LP), slots.placement.num_experts
        self._slots, self._peers = slots, peers
        self._interval, self._budget_bytes, self._min_gain = interval_steps, budget_bytes, min_gain
        self._window = LoadWindow(window_steps, layers, experts, device)
        if load_WLE is not None and peers.rank == 0:
            self._window.fill(load_WLE)
        elif load_WLE is not None:
            self._window.fill(np.zeros_like(load_WLE))
        self._load_WLE = np.zeros((0, layers, experts), np.int64) if load_WLE is None else load_WLE
        self._next = max(1, interval_steps // 4)  # the first placement knows nothing of loads
        self._steps, self._rebalances, self._moved, self._moved_bytes = 0, 0, 0, 0
        self._wanted = False
        self._planned: tuple[int, Future[np.ndarray]] | None = None  # the step that takes it up
        self._mover: Mover | None = None
        self._planner = ThreadPoolExecutor(1, "eplb")
        self._planner.submit(balance, np.ones((1, 1, 2), np.int64), 2, 0, keep_LP=np.array([[0, 1]]))  # compiles it
        slots.count = self._window.count

    @property
    def busy(self) -> bool:
        """Whether a placement is planned or experts are on their way; the same on all ranks."""
        return self._planned is not None or self._mover is not None

    def after_step(self, asked: int = 0) -> None:
        """A step is through on all ranks; `asked` is the most that anybody asks for: 0, GATHER, BALANCE or FINISH."""
        self._window.end_step()
        self._steps += 1
        self._go_on()
        if self._interval and self._steps >= self._next:
            self._next, self._wanted = self._steps + self._interval, True
        self._wanted |= asked >= BALANCE
        if asked == FINISH:
            self._finish()
        if asked or (self._wanted and not self.busy):
            self._load_WLE = self._window.gathered(self._peers)
        if self._wanted and not self.busy:
            self._plan()
        if asked == FINISH:
            self._finish()

    def inspect(self) -> BalancerState:
        placement = self._slots.placement
        peak, mean = peak_and_mean(self._load_WLE, placement.expert_LP, placement.num_ranks)
        return BalancerState(
            num_steps=self._steps,
            num_rebalances=self._rebalances,
            num_ranks=placement.num_ranks,
            placement=placement.expert_LP.tolist(),
            window_steps=len(self._load_WLE),
            peak_tokens=peak,
            mean_tokens=mean,
            rank_tokens=rank_loads(self._load_WLE, placement.expert_LP, placement.num_ranks).tolist(),
            planning=self._planned is not None,
            moves_left=self._mover.num_left if self._mover else 0,
            moved=self._moved + (self._mover.num_moved if self._mover else 0),
            moved_bytes=self._moved_bytes + (self._mover.moved_bytes if self._mover else 0),
        )

    def save(self, path: str | Path) -> None:
        """The present placement and the loads that were added up last. Raises OSError."""
        write_placement(path, Saved(self._slots.placement, self._load_WLE))

    def close(self) -> None:
        self._planner.shutdown(cancel_futures=True)

    def _plan(self) -> None:
        placement, load_WLE = self._slots.placement, self._load_WLE
        self._wanted = False
        redundant = placement.expert_LP.shape[1] - placement.num_experts
        work = self._planner.submit(
            balance,
            load_WLE,
            placement.num_ranks,
            redundant,
            keep_LP=placement.expert_LP,
            min_gain=self._min_gain,
        )
        self._planned = self._steps + PLAN_STEPS, work

    def _go_on(self) -> None:
        if self._planned is not None and self._steps >= self._planned[0]:
            self._take_up()
        if self._mover is not None:
            self._mover.step()
            if self._mover.done:
                self._moved += self._mover.num_moved
                self._moved_bytes += self._mover.moved_bytes
                self._mover = None

    def _take_up(self) -> None:
        assert self._planned is not None
        expert_LP = self._planned[1].result()
        self._planned = None
        now = self._slots.placement
        if not np.array_equal(expert_LP, now.expert_LP):
            self._rebalances += 1
            then = Placement(expert_LP, now.num_experts, now.num_ranks)
            self._mover = Mover(self._peers, self._slots, then, self._budget_bytes)

    def _finish(self) -> None:
        """All that is under way, before the next step."""
        if self._planned is not None:
            self._take_up()
        while self._mover is not None:
            self._go_on()


def _agree(peers: Peers, expert_LP: np.ndarray, device: str | torch.device) -> None:
    seal = int.from_bytes(hashlib.sha256(np.ascontiguousarray(expert_LP, np.int64).tobytes()).digest()[:8], signed=True)
    seals = peers.all_gather(torch.tensor([seal], device=device)).flatten().tolist()
    if others := [str(rank) for rank, other in enumerate(seals) if other != seals[0]]:
        found = f"of the ranks that share experts, {', '.join(others)} begin with another placement than 0"
        raise ValueError(f"{found}: not all hosts have the same file")
