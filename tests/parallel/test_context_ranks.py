"""A leader and its followers: every call arrives, answers are those of one engine, and ranks that differ say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from thread_peers import Board, ThreadPeers, run_ranks
from torch.distributed import HashStore

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_follower, build_graph
from deepinfer.engine.build_seat import Seat, SharedCurve
from deepinfer.engine.context_ranks import FRAME_BYTES, ContextLeader, RanksDiffer, follow
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepOutput, StepPlan
from deepinfer.parallel.groups import Groups, WorldShape
from deepinfer.plan.resolve import resolve
from deepinfer.structured import JsonSchema, Regex

SMALL = ("model=v41_tiny", "hardware=cpu", "model.max_model_len=512", "scheduler.max_num_seqs=4", "model.threads=1")
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["red", "green"]}, "size": {"type": "integer"}}}
FEATURES = {
    "ahead": ("scheduler.async_depth=1", "speculation=dspark", "speculation.cost_curve=none", "cache=prefix"),
    "compact": (
        "scheduler.async_depth=0",
        "speculation=dspark_fixed",
        "speculation.verify=rejection",
        "replay=compact",
    ),
}


class Recorder:
    """An executor that keeps what it is asked, and gives planted results."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens, self.asked, self.grammar, self.drafted = tokens, [], None, False
        self.times, self.row_sizes, self.state = ExecutorTimes(), (), None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.asked.append((name, args))

    def collect(self) -> StepOutput:
        tokens = np.array(self.tokens)
        return StepOutput(tokens, np.ones(len(tokens), dtype=np.int64), np.zeros(len(tokens), dtype=bool))


def plan_of(rows: int) -> StepPlan:
    some, many = np.arange(3), np.arange(rows)
    return StepPlan(some, 2, some[:, None], some[:1], many[:1], many, np.array([True]), some, some, some, draft=True)


def lead(executor: Recorder, peers: ThreadPeers) -> None:
    leader = ContextLeader(executor, peers)
    params = SamplingParams(grammar=Regex("a"), seed=np.int64(5), logit_bias={3: 1.5}, bad_words=("no",))
    leader.prepare(params)
    leader.admit(1, Request(7, np.arange(4), params, seed=2**64 - 1), 30)
    leader.submit(plan_of(5))
    leader.release(2)
    leader.poison(np.array([4, 5]), -1)
    leader.sample(SampleInput(np.array([True, False]), {1: np.full((2, 3), 2**32 - 1, dtype=np.uint32)}))
    leader.serve_draft()  # other leaders' drafts, before anybody collects
    leader.collect()
    leader.serve_forward()
    leader.submit(plan_of(FRAME_BYTES))
    leader.sample(SampleInput())
    leader.collect()
    leader.after_step(2)
    leader.close()


def comparable(value: Any) -> Any:
    """Parameters without their grammars, which stay with the leader; arrays as bytes."""
    if isinstance(value, np.ndarray):
        assert value.flags.writeable
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [comparable(one) for one in value]
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, SamplingParams):
        return {name: getattr(value, name) for name in value.__struct_fields__ if name != "grammar"}
    names = getattr(value, "__slots__", None)
    return comparable({name: getattr(value, name) for name in names}) if names else value


def test_every_call_reaches_all_followers_in_order() -> None:
    def rank(peers: ThreadPeers) -> list:
        executor = Recorder([4, 5])
        if peers.rank == 0:
            lead(executor, peers)
        else:
            follow(executor, peers, lambda asked: executor.asked.append(("after_step", (asked,))))
        return executor.asked

    asked, *others = (comparable(one) for one in run_ranks(3, rank))
    names = [name for name, _ in asked]
    assert names == "prepare admit submit release poison sample serve_draft serve_forward submit sample close".split()
    asked.insert(-1, ["after_step", [2]])  # the leader's caller does it
    assert all(one == asked for one in others)


def test_ranks_that_choose_other_tokens_end_with_a_sentence_everywhere() -> None:
    heard = []

    def rank(peers: ThreadPeers) -> None:
        executor = Recorder([4, 5 + (peers.rank == 2)])
        with pytest.raises(RanksDiffer, match="context ranks 2 chose other tokens than rank 0 in step 1") as found:
            lead(executor, peers) if peers.rank == 0 else follow(executor, peers)
        heard.append(str(found.value))

    run_ranks(3, rank)
    assert len(heard) == 3 and "parallel.context=1" in heard[0]


@pytest.mark.parametrize("features", FEATURES)
def test_two_ranks_answer_as_one(features: str) -> None:
    spec = load(*SMALL, *FEATURES[features], "grammar=llguidance", "speculation.back_off=false")
    plan = resolve(spec, probe(spec))
    wanted, stats = answers(build_graph(plan, poison_freed=True))
    assert sum(stats.accepted_at) > 0, "something was drafted"
    assert stats.prefix is None or stats.prefix.saved_tokens > 0
    data = Board(2)

    def rank(peers: ThreadPeers) -> tuple:
        try:
            return as_rank(ThreadPeers(data, peers.rank), peers)
        except BaseException:
            data.barrier.abort()
            raise

    def as_rank(mine: ThreadPeers, control: ThreadPeers) -> tuple:
        seat = Seat(
            rank=plan.layout.ranks[0],
            role=plan.layout.role(plan.layout.ranks[0].role),
            memory=plan.memory[0],
            shape=WorldShape(attention_dp=1, context=2, expert=1),
            groups=Groups(control=control, context=mine),
            curve=SharedCurve(HashStore(), measures=True),
        )
        if control.rank == 0:
            graph = build_graph(plan, seat=seat, poison_freed=True)
            cache = graph.cache
            return answers(graph)[0], cache
        executor, _ = build_follower(plan, seat)
        cache = executor.cache
        follow(executor, control)
        return None, cache

    (found, cache), (_, other) = run_ranks(2, rank)
    assert found == wanted
    assert torch.equal(cache.state, other.state) and torch.equal(cache.blocks, other.blocks)


def answers(graph: EngineGraph) -> tuple[list, Any]:
    """Tokens and prompt log probabilities of a few requests, one under a grammar; the last comes when the first has ended."""
    engine, rng = graph.engine, np.random.default_rng(3)
    long = np.tile(rng.integers(20, 200, 90), 4)
    asked = [
        (long, SamplingParams(max_tokens=14, ignore_eos=True, seed=1)),
        (long[:40], SamplingParams(max_tokens=24, temperature=0.8, seed=2, grammar=JsonSchema(SCHEMA))),
        (long[:100], SamplingParams(max_tokens=6, seed=3, prompt_logprobs=1)),
        (np.concatenate((long[:300], long[:9])), SamplingParams(max_tokens=8, ignore_eos=True, seed=4)),
    ]
    got: dict[int, list] = {}
    while engine.has_work or asked:
        if asked and (len(asked) > 1 or got[0][-1] is not None):
            got[engine.submit(*asked.pop(0))[0]] = [[], [], None]
            continue
        for event in engine.step():
            tokens, prompt, _ = got[event.request_id]
            tokens += event.token_ids
            prompt += [(one.token_ids.tolist(), one.logprobs.tobytes()) for one in event.prompt_logprobs or []]
            got[event.request_id][2] = event.error or event.finish_reason
    stats = engine.stats()
    engine.close()
    assert all(reason in ("stop", "length") for *_, reason in got.values()), got
    return list(got.values()), stats
