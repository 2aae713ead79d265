"""Ranks as threads, each with the engine of an accelerator on the CPU, as the ranks of one world run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from device_engines import blocks_plan
from fused_models import row_by_row
from golden_engine import bits
from thread_peers import Board, ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.engine.build import EngineGraph, build_follower, build_graph
from deepinfer.engine.build_seat import Seat, SharedCurve, memory_of
from deepinfer.engine.context_ranks import follow
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.world.rank_main import shape_of
from deepinfer.interfaces import SamplingParams
from deepinfer.ops.device import DeviceOps
from deepinfer.parallel.groups import Groups, WorldShape
from deepinfer.parallel.meeting import Met, Word

PATIENCE_S = 60.0


@dataclass
class Ask:
    """One request. It comes at its rank's meeting number `at`, and its client leaves after `leaves` tokens, if ever."""

    prompt: np.ndarray
    params: SamplingParams
    at: int = 0
    leaves: int | None = None


@dataclass
class Heard:
    """All that came of it; log probabilities as raw bits."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple] = field(default_factory=list)
    prompt: list[tuple] = field(default_factory=list)
    reason: str | None = None
    error: str | None = None


class TableStore:
    """A store of torch.distributed, as far as it is used."""

    def __init__(self) -> None:
        self.table: dict[str, bytes] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._news:
            self.table[key] = value
            self._news.notify_all()

    def wait(self, keys: Sequence[str], timeout: object) -> None:
        with self._news:
            assert self._news.wait_for(lambda: all(key in self.table for key in keys), PATIENCE_S)

    def get(self, key: str) -> bytes:
        return self.table[key]


def exact() -> DeviceOps:
    """Twins each row of whose products has the same bits in any company, as kernels have them; logits too."""
    ops = row_by_row()

    def one_by_one(x_TK: Tensor, weight: Tensor, dtype: Any) -> Tensor:
        out = x_TK.new_empty(len(x_TK), len(weight), dtype=dtype)
        for row in range(len(x_TK)):
            out[row] = ops.bf16_linear(x_TK[row : row + 1], weight, dtype)[0]
        return out

    return replace(ops, bf16_linear=one_by_one)


def plan_of(*overrides: str) -> Any:
    exact = not any("rejection" in one or one.startswith("replay") for one in overrides)
    how = ["sampling=reproducible"] if exact else []
    return blocks_plan(*how, "scheduler.max_num_seqs=4", "model.max_model_len=256", *overrides)


def seat_of(plan: Any, rank: int, groups: Groups, store: TableStore) -> Seat:
    place = plan.layout.ranks[rank]
    return Seat(
        rank=place,
        role=plan.layout.role(place.role),
        memory=memory_of(plan, place),
        shape=shape_of(plan, place.role),
        groups=groups,
        curve=SharedCurve(store, measures=rank == 0),  # type: ignore[arg-type]
    )


class RankRun:
    """The day of one leader: its requests, and what others need."""

    def __init__(self, graph: EngineGraph, asks: Sequence[Ask]) -> None:
        self.graph, self.asks = graph, list(asks)
        self.heard = [Heard() for _ in asks]
        self._number: dict[int, int] = {}  # request id → ask
        self.meetings = self.served = 0
        self.stats: Any = None  # at its end, as what follows
        self.lanes: Any = None
        self.company: Any = None

    def run(self) -> list[Heard]:
        engine = self.graph.engine
        while True:
            self._submit()
            before = engine.num_submitted
            if engine.has_work:
                self._step()
            if engine.num_submitted == before:
                met = self._serve()
                self.served += met.runs
                if met.sleeps:
                    return self.heard
            self.meetings += 1

    def _serve(self) -> Met:
        in_step, executor = self.graph.in_step, self.graph.executor
        works = self.graph.engine.has_work or len(self._number) < len(self.asks)
        if in_step is None:
            return Met(runs=False, drafts=False, sleeps=not works, closes=False)
        call = partial(in_step.serve, Word(runs=False, drafts=False, works=works))
        met: Met = executor.ask(call) if isinstance(executor, ThreadedExecutor) else call()
        return met

    def _submit(self) -> None:
        for number, ask in enumerate(self.asks):
            if number not in self._number.values() and ask.at <= self.meetings:
                (request_id,) = self.graph.engine.submit(ask.prompt, ask.params)
                self._number[request_id] = number

    def _step(self) -> None:
        for event in self.graph.engine.step():
            number = self._number[event.request_id]
            heard, ask = self.heard[number], self.asks[number]
            heard.tokens += event.token_ids
            heard.logprobs += [bits(one) for one in event.logprobs or []]
            heard.prompt += [bits(one) for one in event.prompt_logprobs or []]
            heard.reason, heard.error = event.finish_reason or heard.reason, event.error or heard.error
            if ask.leaves is not None and len(heard.tokens) >= ask.leaves and event.finish_reason is None:
                self.graph.engine.abort(event.request_id)


def alone(plan: Any, asks: Sequence[Ask]) -> tuple[RankRun, list[Heard]]:
    """By the engine of one rank."""
    run = RankRun(build_graph(plan, poison_freed=True, device_ops=exact()), asks)
    return run, run.run()


def together(
    plan: Any,
    asks_of: Sequence[Sequence[Ask]],
    ops_of: Callable[[int], DeviceOps] = lambda rank: exact(),
    built: Callable[[int], None] = lambda rank: None,
) -> list[RankRun]:
    """By a world, whose leader i has `asks_of[i]`. Each rank is `built` before its first step. Nothing is held at the end."""
    shape, store = shape_of(plan, "all"), TableStore()
    boards = Boards(shape)

    def rank(peers: ThreadPeers) -> RankRun | None:
        try:
            seat = seat_of(plan, peers.rank, boards.groups(peers.rank), store)
            if seat.leads:
                graph = build_graph(plan, seat=seat, poison_freed=True, device_ops=ops_of(peers.rank))
                built(peers.rank)
                return led(RankRun(graph, asks_of[peers.rank // shape.context]), shape)
            executor, balancer = build_follower(plan, seat, ops_of(peers.rank))
            built(peers.rank)
            assert seat.groups.control is not None
            follow(executor, seat.groups.control, None if balancer is None else balancer.after_step)
        except BaseException:
            boards.abort()
            raise
        return None

    return [run for run in run_ranks(shape.size, rank) if run is not None]


def led(run: RankRun, shape: WorldShape) -> RankRun:
    run.run()
    run.stats = run.graph.engine.stats()
    assert (run.stats.blocks_used, run.stats.slots_used) == (0, 0)
    executor = device_executor_in(run.graph)
    run.lanes, run.company = executor.lanes, executor.company
    assert (run.company is not None) == (shape.tables or shape.expert > 1)
    run.graph.engine.close()
    return run


class Boards:
    """The groups of a world, as threads meet in them."""

    def __init__(self, shape: WorldShape) -> None:
        self.shape = shape
        self.leaders, self.tables = Board(shape.attention_dp), Board(shape.size)
        self.experts = [Board(shape.expert) for _ in range(0, shape.size, shape.expert)]
        self.control, self.context = ([Board(shape.context) for _ in range(shape.attention_dp)] for _ in range(2))

    def groups(self, rank: int) -> Groups:
        shape = self.shape
        (index, place), (group, expert) = divmod(rank, shape.context), divmod(rank, shape.expert)
        experts = ThreadPeers(self.experts[group], expert) if shape.expert > 1 else None
        several = shape.context > 1
        return Groups(
            leaders=ThreadPeers(self.leaders, index) if shape.in_step and not place else None,
            control=ThreadPeers(self.control[index], place) if several else None,
            context=ThreadPeers(self.context[index], place) if several else None,
            experts=experts,
            moves=experts if shape.moves else None,
            tables=ThreadPeers(self.tables, rank) if shape.tables else None,
        )

    def abort(self) -> None:
        for board in (self.leaders, self.tables, *self.experts, *self.control, *self.context):
            board.barrier.abort()


def device_executor_in(graph: EngineGraph) -> Any:
    executor = graph.executor
    while hasattr(executor, "inner"):
        executor = executor.inner
    return executor
