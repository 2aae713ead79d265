"""What a driver asks its leaders between steps: their counters, and what the balancer of experts is at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from deepinfer.engine.world.messages import Experts, ExpertsAsk, Message, Stats, StatsAsk
from deepinfer.engine.world.sums import summed
from deepinfer.engine.world.world import WorldLost

if TYPE_CHECKING:
    from deepinfer.engine.stats import EngineStats
    from deepinfer.engine.world.world import World
    from deepinfer.parallel.eplb.balancer import BalancerState

WAIT_S = 0.1  # for news in a look for answers


class Questions:
    """`hear(wait_s)` takes in what ranks say and hands answers to `take`; `usable` gives the present world or raises WorldLost;
    `send_waking` sends one rank a message that all who run steps with it must know of."""

    def __init__(
        self,
        leaders: Sequence[int],
        hear: Callable[[float], None],
        usable: Callable[[], World],
        send_waking: Callable[[int, Callable[[int], Message]], None],
    ) -> None:
        self._leaders, self._hear, self._usable, self._send_waking = leaders, hear, usable, send_waking
        self._number = 0  # of the newest question
        self._answered: dict[int, Any] = {}  # rank → its answer to it
        self._last: list[EngineStats] = []

    def stats(self, *, refused: int) -> EngineStats:
        """As `Fleet.stats`; `refused` requests reached no leader."""
        try:
            answers = self._ask(self._leaders, lambda rank, number: self._usable().send(rank, StatsAsk(number=number)))
        except WorldLost:
            if not self._last:
                raise
        else:
            self._last = [answer.stats for answer in answers]
        return summed(self._last, refused=refused)

    def experts(self, *, balance: bool, at_once: bool, path: str) -> BalancerState:
        """As `Fleet.ask_experts`."""

        def send(rank: int, number: int) -> None:
            self._send_waking(
                rank,
                lambda wake: ExpertsAsk(number=number, balance=balance, at_once=at_once, path=path, wake=wake),
            )

        (answer,) = self._ask(self._leaders[:1], send)
        if answer.state is None:
            raise ValueError(answer.error)
        state: BalancerState = answer.state
        return state

    def take(self, rank: int, answer: Stats | Experts) -> None:
        """An answer has come; one to an older question is of no use any more."""
        if answer.number == self._number:
            self._answered[rank] = answer

    def _ask(self, ranks: Sequence[int], send: Callable[[int, int], None]) -> list[Any]:
        """What each rank answers to a question that `send(rank, number)` puts; it is put again where ranks were restarted
        meanwhile. Raises WorldLost."""
        while True:
            self._hear(0.0)
            world = self._usable()
            self._number += 1
            self._answered.clear()
            for rank in ranks:
                send(rank, self._number)
            while len(self._answered) < len(ranks) and self._usable() is world:
                self._hear(WAIT_S)
            if self._usable() is world:
                return [self._answered[rank] for rank in ranks]
