"""A driver and its ranks as threads of one process, over real sockets: engines of toy executors that run steps together."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from thread_peers import Board, ThreadPeers
from toy_executor import ToyExecutor

from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_distributed import DistributedExecutor
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.world.fleet import Fleet
from deepinfer.engine.world.lines import Lines
from deepinfer.engine.world.messages import Closed, Fault, Hello, Ready
from deepinfer.engine.world.rank_line import DriverLost, RankLine
from deepinfer.engine.world.rank_loop import RankLoop
from deepinfer.engine.world.world import World
from deepinfer.parallel.channel import Listener, call
from deepinfer.parallel.meeting import Meeting, Room
from deepinfer.speculation.fixed import FixedLengths

HERE = "127.0.0.1"


class Vanished(Exception):
    """A rank that says nothing more, as one that was killed."""


class SpreadToy(ToyExecutor):
    """Every forward pass and every round of drafts is one of all ranks, or this hangs; different ones at a time fail."""

    def __init__(self, limits: EngineLimits, peers: ThreadPeers | None, acceptance: float = 0.7) -> None:
        super().__init__(limits, acceptance)
        self.peers, self.grammar, self.drafted = peers, None, False
        self.num_served, self.agreed = 0, []
        self.on_step: Callable[[], None] = lambda: None

    def submit(self, plan) -> None:
        self.on_step()
        self._together(1)
        super().submit(plan)

    def sample(self, sample) -> None:
        self.drafted = False
        super().sample(sample)

    def _draft(self, slots, alive):
        self.drafted = len(slots) > 0
        if self.drafted:
            self._together(2)
        return super()._draft(slots, alive)

    def room(self, plan) -> Room:
        return Room(len(plan.slots), len(plan.slots))

    def agree(self, room: Room) -> None:
        self.agreed.append(room)

    def serve_forward(self) -> None:
        self.num_served += 1
        self._together(1)

    def serve_draft(self) -> None:
        self._together(2)

    def _together(self, kind: int) -> None:
        if self.peers is not None:
            self.peers.all_gather(torch.zeros(kind))


class CountedMeeting(Meeting):
    number = 0

    def __call__(self, word):
        self.number += 1
        return super().__call__(word)


class ToyRanks:
    """Starts worlds of `size` ranks for a `Fleet`; `executors` and `engines` are those of the newest."""

    def __init__(
        self,
        size: int,
        limits: EngineLimits,
        *,
        in_step: bool = True,
        acceptance: float = 0.7,
        heartbeat_s: float = 0.05,
        silence_s: float = 30.0,
    ) -> None:
        self.size, self.limits, self.in_step, self.acceptance = size, limits, in_step, acceptance
        self.heartbeat_s, self.silence_s = heartbeat_s, silence_s
        self.num_worlds = 0
        self.threads: list[threading.Thread] = []
        self.prepare: Callable[[int, SpreadToy], None] = lambda rank, executor: None  # of each rank of a new world

    def fleet(self, **more) -> Fleet:
        return Fleet(self.start, self.limits, leaders=range(self.size), in_step=self.in_step, **more)

    def start(self) -> World:
        self.num_worlds += 1
        secret = secrets.token_bytes(16)
        listener = Listener(HERE, secret)
        lines = Lines(listener=listener, size=self.size, heartbeat_s=self.heartbeat_s, silence_s=self.silence_s)
        lines.open()
        boards = Board(self.size), Board(self.size)
        peers = [[ThreadPeers(board, rank) for board in boards] for rank in range(self.size)]
        self.executors = [
            SpreadToy(self.limits, peers[rank][1] if self.in_step else None, self.acceptance)
            for rank in range(self.size)
        ]
        self.meetings = [CountedMeeting(peers[rank][0]) for rank in range(self.size)]
        self.engines = [None] * self.size
        for rank in range(self.size):
            self.prepare(rank, self.executors[rank])
            run = partial(self._run, rank, listener.port, secret, boards)
            thread = threading.Thread(target=run, name=f"toy-rank-{rank}", daemon=True)
            self.threads.append(thread)
            thread.start()
        world = World(lines, settle_s=0.1)
        world.wait_ready()
        return world

    def _run(self, rank: int, port: int, secret: bytes, boards: tuple[Board, Board]) -> None:
        channel = call(HERE, port, secret, 10.0)
        line = RankLine(channel, heartbeat_s=self.heartbeat_s, silence_s=self.silence_s, end=None)
        try:
            self._work(rank, line)
            line.send(Closed())
        except (Vanished, DriverLost):
            pass
        except threading.BrokenBarrierError:
            self._tell(line, Fault(why="a rank of its group ended", by_peer=True))
        except Exception as error:  # noqa: BLE001 - as a rank's outermost loop
            self._tell(line, Fault(why=f"{type(error).__name__}: {error}"))
        finally:
            for board in boards:
                board.barrier.abort()
            line.close()

    def _tell(self, line: RankLine, fault: Fault) -> None:
        with suppress(DriverLost):
            line.send(fault)

    def _work(self, rank: int, line: RankLine) -> None:
        executor = self.executors[rank]
        in_step = DistributedExecutor(executor, self.meetings[rank]) if self.in_step else None
        outer = in_step or executor
        if self.limits.async_depth:
            outer = ThreadedExecutor(outer)
        lengths = FixedLengths(self.limits.draft_depth) if self.limits.draft_depth else None
        engine = self.engines[rank] = Engine(outer, self.limits, lengths=lengths)
        line.send(Hello(rank=rank, host=f"host-{rank}", pid=1000 + rank))
        line.send(Ready(warm_up_s=0.0, notices=[]))

        def serve(word):
            ask = partial(in_step.serve, word)
            return outer.ask(ask) if isinstance(outer, ThreadedExecutor) else ask()

        loop = RankLoop(engine, line, serve if in_step else None, in_step)
        line.doing = lambda: loop.doing
        loop.run()
        engine.close()
