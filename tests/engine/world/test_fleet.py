"""Many ranks behind one driver: answers are those of one engine, whoever serves them, whatever else happens."""

from __future__ import annotations

import random
import re
import time

import pytest
from toy_executor import ToyExecutor, expected_answer, toy_limits
from toy_world import ToyRanks, Vanished

from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import RequestRefused
from deepinfer.engine.seeds import sequence_key
from deepinfer.engine.world.world import WorldLost
from deepinfer.interfaces import SamplingParams

PATIENCE_S = 60.0


def drain(fleet, collected: dict[int, list], until) -> None:
    """Step until `until()`; every event goes to its request's list."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline_s, "nothing comes any more"
        for event in fleet.step():
            collected.setdefault(event.request_id, []).append(event)


def ended(collected, request_ids) -> bool:
    return all(collected.get(i) and collected[i][-1].finish_reason for i in request_ids)


def tokens(events) -> list[int]:
    return [token for event in events for token in event.token_ids]


def some_requests(seed: int, number: int, limits) -> list[tuple[list[int], SamplingParams]]:
    rng = random.Random(seed)
    found = []
    for index in range(number):
        prompt = [rng.randrange(1, limits.vocab_size) for _ in range(rng.randrange(1, 20))]
        found.append((prompt, SamplingParams(max_tokens=rng.randrange(1, 25), seed=index, n=1 + (index % 5 == 4))))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(("draft_depth", "async_depth"), [(0, 0), (3, 0), (3, 1)])
def test_answers_are_those_of_one_engine_for_random_arrivals(size, draft_depth, async_depth):
    limits = toy_limits(draft_depth=draft_depth, async_depth=async_depth)
    ranks = ToyRanks(size, limits)
    fleet, collected, submitted = ranks.fleet(), {}, []
    rng = random.Random(size)
    for prompt, params in some_requests(size, 16, limits):
        submitted.append((fleet.submit(prompt, params), prompt, params))
        for _ in range(rng.randrange(3)):
            drain(fleet, collected, iter([False, True]).__next__)
    drain(fleet, collected, lambda: all(ended(collected, ids) for ids, _, _ in submitted))
    alone = [3], SamplingParams(max_tokens=6, seed=1, ignore_eos=True)  # all others serve
    submitted.append((fleet.submit(*alone), *alone))
    drain(fleet, collected, lambda: ended(collected, submitted[-1][0]))
    for ids, prompt, params in submitted:
        for n_index, request_id in enumerate(ids):
            key = sequence_key(params.seed, n_index)
            assert tokens(collected[request_id]) == expected_answer(prompt, key, params, limits)
            assert [event.finish_reason for event in collected[request_id][:-1]] == [None] * (
                len(collected[request_id]) - 1
            )
    stats = fleet.stats()
    assert stats.submitted == sum(len(ids) for ids, _, _ in submitted) == sum(stats.finished.values())
    assert all(executor.plans for executor in ranks.executors), "a rank had nothing to do"
    assert size == 1 or sum(executor.num_served for executor in ranks.executors) > 0
    fleet.close()
    for thread in ranks.threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_world_without_requests_does_not_meet():
    ranks = ToyRanks(3, toy_limits())
    fleet, collected = ranks.fleet(), {}
    ids = fleet.submit([3, 4, 5], SamplingParams(max_tokens=4, seed=1, ignore_eos=True))
    drain(fleet, collected, lambda: ended(collected, ids))
    numbers: list[int] = []
    now_s = rests_since_s = time.monotonic()
    deadline_s = now_s + PATIENCE_S
    while now_s < rests_since_s + 0.3:
        assert now_s < deadline_s, "they meet without end"
        time.sleep(0.01)
        now_s, before = time.monotonic(), numbers
        numbers = [meeting.number for meeting in ranks.meetings]
        if numbers != before:
            rests_since_s = now_s
    assert len(set(numbers)) == 1
    again = fleet.submit([7], SamplingParams(max_tokens=4, seed=1, ignore_eos=True))
    drain(fleet, collected, lambda: ended(collected, again))
    assert len(tokens(collected[again[0]])) == 4
    fleet.close()


def test_requests_go_to_the_rank_with_the_least_to_do_and_count_once():
    ranks = ToyRanks(2, toy_limits(), in_step=False)
    fleet, collected = ranks.fleet(), {}
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    first, second, third = (fleet.submit([5] * length, params) for length in (20, 2, 2))
    assert [fleet._open[ids[0]].leader for ids in (first, second, third)] == [0, 1, 1]
    assert fleet.finish(second[0])
    assert not fleet.finish(second[0])
    assert not fleet.abort(second[0])
    assert fleet._open.load == {0: 40, 1: 22}
    assert fleet.abort(first[0])
    drain(fleet, collected, lambda: ended(collected, [first[0], third[0]]))
    assert collected[first[0]][-1].finish_reason == "abort"
    assert second[0] not in collected
    assert fleet._open.load == {0: 0, 1: 0}
    fleet.close()


@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        ([], SamplingParams()),
        ([1, 99], SamplingParams()),
        ([1] * 64, SamplingParams()),
        ([1], SamplingParams(temperature=-1.0, top_p=7.0)),
        ([1], SamplingParams(grammar={"regex": "a"})),
    ],
)
def test_what_an_engine_refuses_the_driver_refuses_in_the_same_words(prompt, params):
    limits = toy_limits()
    engine = Engine(ToyExecutor(limits), limits)
    with pytest.raises(ValueError) as ours:
        engine.submit(prompt, params)
    ranks = ToyRanks(2, limits)
    fleet = ranks.fleet(prepare=engine.grammars.prepare)
    with pytest.raises(ValueError) as theirs:
        fleet.submit(prompt, params)
    assert (str(theirs.value), type(theirs.value)) == (str(ours.value), type(ours.value))
    assert fleet.stats().refused == 1
    fleet.close()


def failing(rank: int, after: int, error: Exception):
    """Rank `rank` of the first world raises in its step number `after`."""
    worlds = []

    def prepare(number, executor) -> None:
        worlds.append(number)
        steps = []

        def on_step() -> None:
            steps.append(1)
            if number == rank and len(steps) == after and worlds.count(rank) == 1:
                raise error

        executor.on_step = on_step

    return prepare


@pytest.mark.parametrize("async_depth", [0, 1])
def test_a_rank_that_fails_ends_all_requests_with_its_name_and_reason(async_depth):
    ranks = ToyRanks(3, toy_limits(async_depth=async_depth))
    ranks.prepare = failing(1, 3, RuntimeError("a planted fault"))
    fleet, collected = ranks.fleet(), {}
    params = SamplingParams(max_tokens=20, seed=1, ignore_eos=True)
    ids = [fleet.submit([5, 6], params)[0] for _ in range(4)]
    drain(fleet, collected, lambda: ended(collected, ids))
    for request_id in ids:
        last = collected[request_id][-1]
        assert last.finish_reason == "error"
        assert last.error.startswith("rank 1 (host host-1, pid 1001) failed while ")
        assert last.error.endswith("RuntimeError: a planted fault")
    with pytest.raises(ValueError, match=r"this LLM is broken: rank 1 .* a planted fault; make a new one"):
        fleet.submit([1], params)
    assert fleet.step() == []
    fleet.close()


@pytest.mark.parametrize("error", [Vanished(), RuntimeError("a planted fault")], ids=["vanishes", "fails"])
@pytest.mark.parametrize("draft_depth", [0, 3])
def test_lost_ranks_are_started_again_and_answers_come_out_undisturbed(error, draft_depth, capsys):
    limits = toy_limits(draft_depth=draft_depth)
    ranks = ToyRanks(3, limits)
    ranks.prepare = failing(2, 4, error)
    fleet, collected, submitted = ranks.fleet(restarts=1), {}, []
    for prompt, params in some_requests(5, 12, limits):
        submitted.append((fleet.submit(prompt, params), prompt, params))
    drain(fleet, collected, lambda: all(ended(collected, ids) for ids, _, _ in submitted))
    assert ranks.num_worlds == 2
    assert "rank 2 (host host-2, pid 1002)" in capsys.readouterr().err
    for ids, prompt, params in submitted:
        for n_index, request_id in enumerate(ids):
            expected = expected_answer(prompt, sequence_key(params.seed, n_index), params, limits)
            assert tokens(collected[request_id]) == expected
    assert fleet._open.load == {0: 0, 1: 0, 2: 0}
    fleet.close()


def test_a_rank_that_gives_no_sign_of_life_counts_as_lost():
    ranks = ToyRanks(2, toy_limits(), heartbeat_s=0.05, silence_s=0.4)
    fleet, collected = ranks.fleet(), {}
    ids = fleet.submit([5, 6], SamplingParams(max_tokens=5, seed=1))
    drain(fleet, collected, lambda: ended(collected, ids))
    fleet.world.lines.ranks[1].silence.heard = lambda: None  # as if nothing came from it any more
    ids = fleet.submit([5, 6], SamplingParams(max_tokens=50, seed=1, ignore_eos=True))
    drain(fleet, collected, lambda: fleet.lost)
    assert re.search(r"rank 1 \(host host-1, pid 1001\) gave no sign of life for 0\.\d+ s while ", fleet.lost)
    drain(fleet, collected, lambda: ended(collected, ids))
    fleet.close()


def test_results_that_no_message_carries_end_their_request_alone(monkeypatch):
    ranks = ToyRanks(2, toy_limits())
    fleet, collected = ranks.fleet(), {}
    monkeypatch.setattr("deepinfer.parallel.channel.MOST_BYTES", 1500)
    large = fleet.submit([5] * 30, SamplingParams(max_tokens=5, seed=1, ignore_eos=True, prompt_logprobs=1))
    small = fleet.submit([5, 6], SamplingParams(max_tokens=5, seed=1, ignore_eos=True))
    drain(fleet, collected, lambda: ended(collected, large + small))
    assert re.match(
        "its results are a message of .* bytes; between ranks one has at most 1,500", collected[large[0]][-1].error
    )
    assert len(tokens(collected[small[0]])) == 5
    fleet.close()


def test_who_was_admitted_is_told_once_whoever_heard_of_it():
    ranks = ToyRanks(2, toy_limits())
    fleet, admitted = ranks.fleet(), []
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    ids, collected = [], {}
    for _ in range(4):
        ids += fleet.submit([5, 6], params)
        fleet.stats()  # hears what came meanwhile
    deadline_s = time.monotonic() + PATIENCE_S
    while not ended(collected, ids):
        assert time.monotonic() < deadline_s
        for event in fleet.step():
            collected.setdefault(event.request_id, []).append(event)
        admitted += fleet.newly_admitted
    assert sorted(admitted) == ids
    fleet.close()


def test_a_request_that_no_message_carries_wakes_nobody(monkeypatch):
    ranks = ToyRanks(3, toy_limits())
    fleet = ranks.fleet()
    sent, send = [], fleet.world.send
    monkeypatch.setattr(fleet.world, "send", lambda rank, message: (send(rank, message), sent.append((rank, message))))
    monkeypatch.setattr("deepinfer.parallel.channel.MOST_BYTES", 500)
    with pytest.raises(RequestRefused, match="between ranks one has at most 500"):
        fleet.submit([5] * 40, SamplingParams(max_tokens=5, seed=1))
    assert (sent, len(fleet._open)) == ([], 0)
    ids, collected = fleet.submit([5], SamplingParams(max_tokens=2, seed=1)), {}
    assert [(rank, type(message).__name__) for rank, message in sent] == [(0, "Submit"), (1, "Poke"), (2, "Poke")]
    monkeypatch.undo()
    drain(fleet, collected, lambda: ended(collected, ids))
    fleet.close()


def test_a_closed_fleet_says_so_instead_of_waiting():
    ranks = ToyRanks(2, toy_limits(), in_step=False)
    asked, never = ranks.fleet(), ranks.fleet()
    collected = {}
    ids = asked.submit([5, 6], SamplingParams(max_tokens=3, seed=1))
    drain(asked, collected, lambda: ended(collected, ids))
    before = asked.stats()
    for fleet in (asked, never):
        fleet.close()
        with pytest.raises(WorldLost, match="this LLM is closed; make a new one"):
            fleet.ask_experts()
        with pytest.raises(RequestRefused, match="this LLM is closed"):
            fleet.submit([1], SamplingParams(max_tokens=1, seed=1))
    assert asked.stats().finished == before.finished
    with pytest.raises(WorldLost, match="this LLM is closed"):
        never.stats()
