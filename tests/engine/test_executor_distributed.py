"""Ranks as threads whose executors run in step: who has no rows serves, and all do the same between two steps."""

from __future__ import annotations

import random
import threading
from functools import partial

import numpy as np
import pytest
import torch
from golden_engine import small_plan
from msgspec import structs
from thread_peers import ThreadPeers, run_ranks
from toy_executor import toy_limits
from toy_world import SpreadToy

from deepinfer.engine.build_seat import SharedCurve, memory_of
from deepinfer.engine.device import StepOutOfMemory
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_distributed import DistributedExecutor
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.shared_steps import OwnStepLost, SharedStepLost
from deepinfer.interfaces import SamplingParams
from deepinfer.parallel.meeting import Meeting, Met, Room, Word
from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.fixed import FixedLengths

RESTING = Word(runs=False, drafts=False, works=False)


def test_a_leader_alone_is_what_its_meeting_says():
    met = Meeting(None)(Word(runs=True, drafts=False, works=True, wake=3, asked=2))
    assert met == Met(runs=True, drafts=False, sleeps=False, closes=False, asked=2)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([RESTING, RESTING], Met(runs=False, drafts=False, sleeps=True, closes=False)),
        (
            [RESTING, Word(runs=False, drafts=False, works=False, wake=1)],  # a message is on its way to the first
            Met(runs=False, drafts=False, sleeps=False, closes=False),
        ),
        (
            [RESTING, Word(runs=False, drafts=False, works=True)],  # somebody waits for a grammar
            Met(runs=False, drafts=False, sleeps=False, closes=False),
        ),
        (
            [
                Word(runs=False, drafts=False, works=False, closes=True),
                Word(runs=True, drafts=True, works=True, asked=3),
            ],
            Met(runs=True, drafts=True, sleeps=False, closes=False, asked=3),
        ),
        (
            [Word(runs=False, drafts=False, works=False, closes=True)] * 2,
            Met(runs=False, drafts=False, sleeps=True, closes=True),
        ),
    ],
)
def test_what_comes_out_of_a_meeting_is_the_same_for_all(words, expected):
    assert run_ranks(2, lambda peers: Meeting(peers)(words[peers.rank])) == [expected, expected]


def boards(size: int) -> list[list[ThreadPeers]]:
    """Peers of two groups of the same ranks, by rank."""
    both = [[], []]
    for group in both:
        run_ranks(size, group.append)
    by_rank = [sorted(group, key=lambda peers: peers.rank) for group in both]
    return [list(pair) for pair in zip(*by_rank)]


@pytest.mark.parametrize("depth", [0, 3])
def test_ranks_do_the_same_between_steps_whoever_has_rows(depth):
    """Each rank has requests of its own, some have none for a while; what is done after a step is a collective, too."""
    limits, peers_of = toy_limits(draft_depth=depth), boards(3)

    def run(peers: ThreadPeers) -> tuple[list[int], int, int]:
        rank, said, answered = peers.rank, [], []
        meet, work = peers_of[rank]
        executor = SpreadToy(limits, work)

        def after_step(asked: int) -> None:
            said.append(asked)
            peers.all_gather(word_of(asked))

        in_step = DistributedExecutor(executor, Meeting(meet), after_step=after_step)
        engine = Engine(in_step, limits, lengths=FixedLengths(depth) if depth else None)
        rng = random.Random(rank)
        for _ in range(rank * 2):
            prompt = [rng.randrange(1, 50) for _ in range(rng.randrange(1, 15))]
            engine.submit(np.array(prompt), SamplingParams(max_tokens=rng.randrange(2, 20), seed=rank, ignore_eos=True))
        if rank == 1:
            in_step.ask(2, lambda: answered.append(len(said)))
        while True:
            before = engine.num_submitted
            if engine.has_work:
                engine.step()
            if engine.num_submitted == before:
                met = in_step.serve(Word(runs=False, drafts=False, works=engine.has_work))
                if met.sleeps:
                    return said, executor.num_served, sum(answered)

    (first, *others), served, answers = map(list, zip(*run_ranks(3, run)))
    assert others == [first, first]
    assert (first[0], set(first[1:])) == (2, {0})
    assert served[0] == len(first)  # rank 0 never had rows
    assert answers == [0, 1, 0]


def word_of(number: int) -> torch.Tensor:
    return torch.tensor([number])


class TableStore:
    """A store of torch.distributed, as far as it is used."""

    def __init__(self) -> None:
        self.table, self.news = {}, threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self.news:
            self.table[key] = value
            self.news.notify_all()

    def wait(self, keys, timeout) -> None:
        with self.news:
            assert self.news.wait_for(lambda: all(key in self.table for key in keys), 30.0)

    def get(self, key: str) -> bytes:
        return self.table[key]


@pytest.mark.parametrize("in_step", [True, False])
def test_one_rank_measures_the_curve_of_all_while_the_others_serve(in_step):
    limits, peers_of, store = toy_limits(), boards(3), TableStore()
    tables = (
        np.array([1, 2, 7]),
        np.array([0.1, 0.2, 0.30000000000000004]),
        np.array([1, 4]),
        np.zeros(2),
        np.ones(2) / 3,
    )

    def run(peers: ThreadPeers) -> tuple[list, int]:
        meet, work = peers_of[peers.rank]
        executor = SpreadToy(limits, work if in_step else None)
        shared = SharedCurve(store, measures=peers.rank == 0)
        distributed = DistributedExecutor(executor, Meeting(meet))
        shared.in_step = distributed if in_step else None

        def measured() -> tuple[CostCurve, str]:
            assert peers.rank == 0
            engine = Engine(distributed if in_step else executor, limits)
            engine.submit(np.array([3, 4]), SamplingParams(max_tokens=5, seed=1, ignore_eos=True))
            while engine.has_work:
                engine.step()
            return CostCurve(*tables), "a notice"

        curve, notice = shared(measured)
        assert notice == ("a notice" if peers.rank == 0 else "")
        found = [curve.rows, curve.forward_s, curve.sequences, curve.plain_s, curve.drafting_s]
        return [table.tolist() for table in found], executor.num_served

    results = run_ranks(3, run)
    assert all(curve == results[0][0] for curve, _ in results)
    assert [served for _, served in results] == ([0, 5, 5] if in_step else [0, 0, 0])


def test_a_rank_takes_the_smallest_memory_of_those_that_share_its_requests():
    plan = small_plan("model=v41_tiny", "parallel=ep4")
    whole = plan.memory[0]
    memory = tuple(
        structs.replace(whole, ranks=ranks, num_blocks=blocks) for ranks, blocks in (("0,2", 90), ("1", 80), ("3", 70))
    )
    apart = structs.replace(plan, memory=memory)
    assert [memory_of(apart, rank).num_blocks for rank in plan.layout.ranks] == [90, 80, 90, 70]
    pairs = small_plan("model=v41_tiny", "parallel.attention_dp=2", "parallel.context=2")
    apart = structs.replace(pairs, memory=memory)
    assert [memory_of(apart, rank).num_blocks for rank in pairs.layout.ranks] == [80, 80, 70, 70]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("place", ["submit", "sample", "serve_forward"])
def test_a_step_that_is_lost_on_one_of_several_ranks_is_a_failure_of_that_rank(place, threaded, monkeypatch):
    limits, (peers,) = toy_limits(async_depth=int(threaded)), boards(1)
    executor = SpreadToy(limits, None)

    def lose(*_) -> None:
        raise StepOutOfMemory("memory ran out on a device of 80 MiB")

    monkeypatch.setattr(executor, place, lose)
    in_step = DistributedExecutor(executor, Meeting(peers[0]))
    with pytest.raises(
        SharedStepLost, match=r"^memory ran out on a device of 80 MiB: a step that several ranks run .*lost"
    ):
        if place == "serve_forward":
            monkeypatch.setattr(in_step, "_meet", lambda word: Met(runs=True, drafts=False, sleeps=False, closes=False))
            in_step.serve(RESTING)
        engine = Engine(ThreadedExecutor(in_step) if threaded else in_step, limits)
        engine.submit(np.array([3, 4]), SamplingParams(max_tokens=5, seed=1, ignore_eos=True))
        while engine.has_work:
            engine.step()


def test_ranks_agree_on_the_room_of_those_that_have_most():
    rooms = [Room(), Room(rows=24, sequences=2), Room(rows=8, sequences=4)]

    def run(peers: ThreadPeers) -> list[Room]:
        executor = SpreadToy(toy_limits(), None)
        in_step = DistributedExecutor(executor, Meeting(peers))
        in_step.serve(Word(runs=False, drafts=False, works=False, room=rooms[peers.rank]))
        return executor.agreed

    assert run_ranks(3, run) == [[Room(rows=24, sequences=4)]] * 3


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("place", ["submit", "sample"])
def test_a_step_that_is_lost_at_one_rank_alone_is_run_again_there(place, threaded):
    """The executor has done what the others needed of it; the round of drafts that they run is served in its place."""
    limits, peers_of = toy_limits(draft_depth=2, async_depth=int(threaded)), boards(2)

    def run(peers: ThreadPeers) -> tuple[list[int], int]:
        meet, work = peers_of[peers.rank]
        executor = SpreadToy(limits, work)
        if peers.rank == 1:
            lose_once(executor, place)
        in_step = DistributedExecutor(executor, Meeting(meet), after_step=lambda asked: peers.all_gather(word_of(0)))
        runs = ThreadedExecutor(in_step) if threaded else in_step
        engine, said = Engine(runs, limits, lengths=FixedLengths(2)), []
        engine.submit(np.array([3, 4, 5]), SamplingParams(max_tokens=9, seed=7, ignore_eos=True))
        while True:
            before = engine.num_submitted
            if engine.has_work:
                said += [token for event in engine.step() for token in event.token_ids]
            if engine.num_submitted == before:
                serve = partial(in_step.serve, Word(runs=False, drafts=False, works=engine.has_work))
                met = runs.ask(serve) if threaded else serve()
                if met.sleeps:
                    return said, engine.stats().lost_steps

    (first, lost), (second, lost_too) = run_ranks(2, run)
    assert first == second and len(first) == 9 and (lost, lost_too) == (0, 1)


def lose_once(executor: SpreadToy, place: str) -> None:
    """In the third step, once others have what they need of it."""
    work, calls = getattr(executor, place), []

    def lose(given) -> None:
        calls.append(1)
        if len(calls) != 3:
            work(given)
            return
        if place == "submit":
            executor.serve_forward()
        else:
            executor._flying.pop()
        executor.drafted = False
        raise OwnStepLost("none left")

    setattr(executor, place, lose)
