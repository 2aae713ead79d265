"""The ranks of a world as their driver sees them: it waits until all are ready, hears them, and finds out who failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deepinfer.config.errors import Problem
from deepinfer.engine.world.children import Children
from deepinfer.engine.world.lines import LineEnded, Lines
from deepinfer.engine.world.messages import Beat, Close, Closed, Fault, Message, Ready, ToDriver

SETTLE_S = 1.0  # after the first sign that something is wrong, for the others that say what
CLOSING_S = 10.0  # for ranks to end by themselves


class WorldLost(RuntimeError):
    """The ranks cannot go on: one of them ended, hangs or failed. `problems` where a user can mend it."""

    def __init__(self, why: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(why)
        self.problems = tuple(problems)


@dataclass
class _Evidence:
    """What is known of the end of the ranks, by rank."""

    faults: dict[int, Fault] = field(default_factory=dict)
    ended: dict[int, LineEnded] = field(default_factory=dict)

    def add(self, rank: int, news: Fault | LineEnded) -> None:
        if isinstance(news, Fault):
            self.faults.setdefault(rank, news)
        else:
            self.ended.setdefault(rank, news)

    @property
    def is_first_hand(self) -> bool:
        """Whether somebody's end is known that is not another one's doing."""
        return any(not fault.by_peer for fault in self.faults.values()) or any(
            rank not in self.faults for rank in self.ended
        )


class World:
    """`children` are the processes of the ranks where this one started them, None where somebody else did."""

    def __init__(self, lines: Lines, children: Children | None = None, *, settle_s: float = SETTLE_S) -> None:
        self.lines, self.children, self._settle_s = lines, children, settle_s
        self.warm_up_s = 0.0
        self.notices: list[str] = []
        self.keeps: list[object] = []  # what lives as long as the world: the store that its ranks met in
        self._wake = 0
        self._lost: WorldLost | None = None

    def wait_ready(self, tell: Callable[[str], None] = lambda doing: None) -> None:
        """Until every rank has loaded its part; `tell` hears what they are at. Raises WorldLost."""
        ready: set[int] = set()
        while len(ready) < self.lines.size:
            tell(self._at_start(ready))
            rank, message = self.next(0.2) or (0, None)
            if isinstance(message, Ready):
                ready.add(rank)
                self.warm_up_s = max(self.warm_up_s, message.warm_up_s)
                self.notices += [text for text in message.notices if text not in self.notices]

    def _at_start(self, ready: set[int]) -> str:
        """What the first rank that is not ready is at, and how many are."""
        size = self.lines.size
        late = next((rank for rank in range(size) if rank not in ready), 0)
        doing = self.lines.ranks[late].doing if late in self.lines.ranks else "starting"
        return doing if size == 1 else f"rank {late}: {doing}; {len(ready)} of {size} are ready"

    def nudge(self) -> None:
        """End whoever waits in `next`, from any thread."""
        self.lines.news.put((0, Beat()))

    def next(self, wait_s: float) -> tuple[int, ToDriver] | None:
        """What a rank says next, None where nobody says anything within `wait_s`. Raises WorldLost, and again from then on."""
        if self._lost is not None:
            raise self._lost
        news = self.lines.next(wait_s)
        if news is None:
            self.check()
            return None
        rank, message = news
        if isinstance(message, (Fault, LineEnded)):
            self._lost = self._find_cause({rank: message})
            raise self._lost
        return rank, message

    def check(self) -> None:
        """Raises WorldLost for ranks that ended before they could say anything."""
        if self._lost is None and (gone := self._gone_early()):
            self._lost = self._find_cause(dict.fromkeys(gone, LineEnded()))
        if self._lost is not None:
            raise self._lost

    def send(self, rank: int, message: Message) -> None:
        """Raises MessageTooLarge."""
        self.lines.send(rank, message)

    def next_wake(self) -> int:
        """A number that no message had before."""
        self._wake += 1
        return self._wake

    def close(self, within_s: float = CLOSING_S) -> None:
        """End all ranks, together where they still answer; none is left where this process started them."""
        wake, deadline_s = self.next_wake(), time.monotonic() + within_s
        closed: set[int] = set()
        for rank in range(self.lines.size):
            self.lines.send(rank, Close(wake=wake))
        while self._lost is None and len(closed) < len(self.lines.ranks) and time.monotonic() < deadline_s:
            news = self.lines.next(0.1)
            if news is not None and isinstance(news[1], (Closed, LineEnded, Fault)):
                closed.add(news[0])
        if self.children is not None:
            self.children.end(0.0 if self._lost is not None else max(1.0, deadline_s - time.monotonic()))
        self.lines.close()
        self.keeps.clear()

    def _gone_early(self) -> list[int]:
        """Children that have ended and never called."""
        children, called = self.children, self.lines.ranks
        return [rank for rank in range(self.lines.size) if children and rank not in called and children.ended(rank)]

    def _find_cause(self, first: Mapping[int, Fault | LineEnded]) -> WorldLost:
        """One rank's end ends others, and their news may come first: hear them all."""
        evidence, started_s = _Evidence(), time.monotonic()
        for rank, news in first.items():
            evidence.add(rank, news)
        longest_s = self.lines.silence_s + 2 * self.lines.heartbeat_s  # until a rank that hangs is found
        while (waited_s := time.monotonic() - started_s) < longest_s:
            if waited_s > self._settle_s and evidence.is_first_hand:
                break
            heard = self.lines.next(0.05)
            if heard is not None and isinstance(heard[1], (Fault, LineEnded)):
                evidence.add(heard[0], heard[1])
            for rank in self._gone_early():
                evidence.add(rank, LineEnded())
        return self._told(evidence)

    def _told(self, evidence: _Evidence) -> WorldLost:
        own = [(rank, fault) for rank, fault in evidence.faults.items() if not fault.by_peer]
        problems = [problem for _, fault in own for problem in fault.problems]
        if own:
            rank, fault = own[0]
            return WorldLost(f"{self._name(rank)} failed{self._at(rank)}: {fault.why}", list(dict.fromkeys(problems)))
        quiet = {rank: ended for rank, ended in evidence.ended.items() if rank not in evidence.faults}
        gone = [rank for rank, ended in quiet.items() if ended.silent_s is None and ended.deaf_s is None]
        if gone:
            return WorldLost(
                "; ".join(f"{self._name(rank)} {self._how(rank)}{self._at(rank)}" for rank in sorted(gone))
            )
        if quiet:
            told = [
                f"{self._name(rank)} {_quiet(ended)}{self._at(rank)}: it was stopped, or its host or network is gone"
                for rank, ended in sorted(quiet.items())
            ]
            return WorldLost("; ".join(told))
        rank, fault = next(iter(evidence.faults.items()))
        return WorldLost(f"{self._name(rank)} lost the others{self._at(rank)}: {fault.why}")

    def _name(self, rank: int) -> str:
        known = self.lines.ranks.get(rank)
        if known is not None:
            return f"rank {rank} (host {known.hello.host}, pid {known.hello.pid})"
        return f"rank {rank}" + (f" (pid {self.children.pids()[rank]})" if self.children is not None else "")

    def _how(self, rank: int) -> str:
        if self.children is None:
            return "ended without a word (killed, or its host is gone)"
        deadline_s = time.monotonic() + SETTLE_S
        while (how := self.children.ended(rank)) is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return how or "closed its line to the driver"

    def _at(self, rank: int) -> str:
        known = self.lines.ranks.get(rank)
        return f" while {known.doing}" if known is not None else " while starting"


def _quiet(ended: LineEnded) -> str:
    if ended.deaf_s is not None:
        return f"took no message for {ended.deaf_s:.2g} s"
    return f"gave no sign of life for {ended.silent_s:.2g} s"
