"""Engines of accelerators as ranks of a world: the bits of one engine alone, whoever has requests and whatever is on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from device_ranks import Ask, Heard, RankRun, alone, exact, plan_of, together
from fused_models import golden
from golden_engine import small_plan

from deepinfer.engine import build_device, device_forward, sampling_graphs
from deepinfer.engine.device_assembly import Loaded
from deepinfer.engine.shared_steps import SharedStepLost
from deepinfer.interfaces import SamplingParams
from deepinfer.model.fused import chunk_step, decode_step, serve_step
from deepinfer.model.fused.rehearsal import rehearsal
from deepinfer.model.fused.step_graphs import GraphStats
from deepinfer.ops.device import DeviceOps
from deepinfer.speculation import draft_rounds
from deepinfer.structured import JsonSchema, Regex

CONFIG = golden().config

DRAFTS = ("speculation=dspark_fixed", "speculation.back_off=false")
AHEAD = "scheduler.async_depth=1"
OPTIONS = {
    "plain": (),
    "drafts ahead": (*DRAFTS, AHEAD),
    "measured lengths": ("speculation=dspark", AHEAD),
    "drafts of the host": ("speculation=ngram", "speculation.back_off=false", AHEAD),
    "rejection": (*DRAFTS, "speculation.verify=rejection", AHEAD),
    "prefix": ("cache=prefix", "cache.num_blocks=60", *DRAFTS, AHEAD),
    "chunks and preemption": ("cache.num_blocks=3", "scheduler.max_prefill_tokens=19", *DRAFTS, AHEAD),
    "compact": ("replay=compact", "replay.keep_tokens=40", AHEAD),
    "copies of experts": ("parallel.redundant_experts=2", AHEAD),
    "tables": ("parallel.engram=sharded", *DRAFTS, AHEAD),
}
ANOTHER_LAW = ("rejection", "compact")  # whose tokens are not those of a plain engine


def asks(prompt_logprobs: int | None = 1) -> list[Ask]:
    """Long and short ones; the last begins as the first does, for a whole block, and comes when that has ended. It asks for
    nothing of its prompt, which may come out of the cache."""
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 2000, length) for length in (140, 41, 3, 20)]
    prompts.append(np.concatenate([prompts[0][:135], prompts[3][:5]]))
    temperatures = (0.0, 1.0, 0.7, 1.2, 1.0)
    params = [
        SamplingParams(
            max_tokens=6,
            temperature=temperature,
            seed=seed,
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=None if seed == 4 else prompt_logprobs,
        )
        for seed, temperature in enumerate(temperatures)
    ]
    made = [Ask(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    made[2].at, made[4].at = 3, 14
    return made


@cache
def wanted(*options: str) -> list[Heard]:
    return alone(plan_of(*options), asks(None if "replay=compact" in options else 1))[1]


def assert_acted(name: str, runs: list[RankRun]) -> None:
    stats = [run.stats for run in runs]
    assert runs[1].served > 0, "the second rank has less to do, and serves the first"
    if "ahead" in name:
        assert all(one.steps_ahead > 0 for one in stats)
    if "drafts" in name or name in ("rejection", "prefix", "tables"):
        assert sum(map(sum, (one.checked_at for one in stats))) > 0
    if name == "prefix":
        assert stats[0].prefix is not None and stats[0].prefix.saved_tokens == 128
    if "preemption" in name:
        assert stats[0].preemptions > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OPTIONS)
def test_two_ranks_answer_as_one(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = OPTIONS[name]
    mine = asks(None if name == "compact" else 1)
    if "preemption" in name:
        for one in (mine[0], mine[4]):  # both grow beyond a block while they answer, for which there is room for one
            one.prompt, one.at = one.prompt[:125], 0
    runs = together(plan_of("parallel=ep2", *options), [[mine[0], mine[2], mine[4]], [mine[1], mine[3]]])
    first, third, fifth = runs[0].heard
    second, fourth = runs[1].heard
    plain = options if name in ANOTHER_LAW else ()
    expected = alone(plan_of(), mine)[1] if "preemption" in name else wanted(*plain)
    assert [first, second, third, fourth, fifth] == expected
    assert_acted(name, runs)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "layout", [("parallel=ep4",), ("parallel=ep2", "parallel.attention_dp=4")], ids=["ep4", "pairs"]
)
def test_ranks_without_requests_and_clients_that_leave(layout: tuple[str, ...]) -> None:
    """Four ranks, one of which has nothing to do all day and one only later; experts are shared by pairs or by all."""
    mine = asks()
    for one, tokens in zip(mine, (None, 4, None, 1, None), strict=True):
        one.leaves = tokens
    mine[4].at = 6
    runs = together(plan_of(*layout, *DRAFTS, AHEAD), [mine[:3], [], [mine[4]], [mine[3]]])
    for ask, one, two in zip(mine, [*runs[0].heard, *runs[3].heard, *runs[2].heard], wanted(), strict=True):
        count = len(one.tokens)
        assert one.tokens == two.tokens[:count] and one.logprobs == two.logprobs[:count]
        assert one.reason == ("abort" if ask.leaves else "length") and one.prompt == two.prompt
    assert runs[1].served > 0 and runs[1].stats.steps == 0


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "layout",
    [
        ("parallel=cp2",),
        ("parallel=cp2", "parallel.expert=2", "parallel.engram=sharded"),
        ("parallel=cp2", "parallel.attention_dp=2", "parallel.expert=4"),
    ],
    ids=["alone", "and experts", "and others"],
)
def test_ranks_that_share_prompts(layout: tuple[str, ...]) -> None:
    """Those that follow repeat every call of their leader, whose sizes are theirs."""
    mine, several = asks(), "parallel.attention_dp=2" in layout
    runs = together(plan_of(*layout, *DRAFTS, AHEAD, "cache=prefix"), [mine[:3], mine[3:]] if several else [mine])
    assert [heard for run in runs for heard in run.heard] == wanted()


class PlayedGraphs:
    """Stands for `StepGraphs` where there are none: rehearsed when a size first comes, as they are, and launched to replay."""

    def __init__(self, run: Any, stand_in: Any, device: Any, what: str = "", pool: Any = None) -> None:
        self._run, self._stand_in, self.pool, self.sizes, self.stats = run, stand_in, pool, set(), GraphStats()

    def __len__(self) -> int:
        return len(self.sizes)

    def has(self, size: Any) -> bool:
        return size in self.sizes

    def capture(self, size: Any) -> None:
        if size in self.sizes:
            return
        self._stand_in(size)
        with rehearsal():
            self._run(size)
        self.sizes.add(size)
        self.stats.captures += 1

    def replay(self, size: Any) -> None:
        self._run(size)
        self.stats.replays += 1

    def close(self) -> None:
        self.sizes.clear()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of all kinds."""
    for module in (decode_step, chunk_step, serve_step, sampling_graphs, draft_rounds):
        monkeypatch.setattr(module, "StepGraphs", PlayedGraphs)
    monkeypatch.setattr(decode_step, "_check", lambda *asked: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(build_device, "Loaded", lambda **parts: Loaded(**parts | {"graphs": True}))
    monkeypatch.setattr(build_device, "_is_tight", lambda memory: False)
    monkeypatch.setattr(chunk_step, "SIZES", (16, 64, 256))
    monkeypatch.setattr(device_forward, "SIZES", (16, 64, 256))


@pytest.mark.slow
@pytest.mark.usefixtures("played")
def test_ranks_that_capture_graphs_at_different_times_answer_as_one() -> None:
    """Steps with chunks and rounds of drafts, too; what is rehearsed is said to nobody, and changes nothing."""
    mine = asks()
    runs = together(plan_of("parallel=ep2", *DRAFTS, AHEAD), [mine[:3], mine[3:]])
    assert [*runs[0].heard, *runs[1].heard] == wanted()
    for run in runs:
        lanes = run.lanes
        assert lanes.decode.stats.replays > 0 and lanes.chunks.stats.replays > 0
        assert lanes.decode.stats.direct == lanes.chunks.stats.direct == 0
    assert runs[1].company.forward.stats.replays > 0


class Failing:
    """Operations of the second rank, of which `name` finds no memory in these of its calls from when the rank is built."""

    def __init__(self, name: str, calls: set[int]) -> None:
        self.name, self.calls, self.count = name, calls, -1

    def ops_of(self, rank: int) -> DeviceOps:
        ops = exact()
        return replace(ops, **{self.name: partial(self.call, getattr(ops, self.name))}) if rank else ops

    def built(self, rank: int) -> None:
        self.count = 0 if rank else self.count

    def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.count += self.count >= 0
        if self.count in self.calls:
            raise torch.OutOfMemoryError("none left")
        return work(*args, **kwargs)


ROUND = CONFIG.num_hidden_layers + CONFIG.num_nextn_predict_layers  # calls of attention in a step that drafts


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("options", "lost"),
    [((), {1, 7 * ROUND + 3}), ((AHEAD,), {ROUND, 8 * ROUND - 1})],
    ids=["in turn", "ahead"],
)
def test_a_step_that_finds_no_memory_on_one_rank_is_run_again_there_and_others_do_not_notice(
    options: tuple[str, ...], lost: set[int]
) -> None:
    """In forward passes and in rounds of drafts, before the first exchange and between two."""
    mine, planted = asks(), Failing("sparse_attention", lost)
    plan = plan_of("parallel=ep2", *DRAFTS, *options)
    runs = together(plan, [mine[:3], mine[3:]], planted.ops_of, planted.built)
    assert [*runs[0].heard, *runs[1].heard] == wanted()
    assert (runs[0].stats.lost_steps, runs[1].stats.lost_steps) == (0, len(lost))


def test_a_rank_without_memory_for_what_others_wait_for_ends_with_a_sentence() -> None:
    """Their rows are with it by then."""
    mine, planted = asks(), Failing("fp4_experts_up", {17})
    with pytest.raises(SharedStepLost, match=r"memory ran out: a step that several ranks run together was lost"):
        together(plan_of("parallel=ep2"), [mine[:1], mine[1:2]], planted.ops_of, planted.built)


@pytest.mark.slow
def test_experts_that_move_in_the_midst_of_answers_change_nothing() -> None:
    mine = asks()
    eplb = ("balancer=eplb", "parallel.redundant_experts=2", "balancer.interval_steps=8", "balancer.min_gain=0")
    runs = together(plan_of("parallel=ep2", *eplb, *DRAFTS, AHEAD), [mine[:3], mine[3:]])
    assert [*runs[0].heard, *runs[1].heard] == wanted()
    states = [run.graph.balancer.inspect() for run in runs]
    assert states[0].placement == states[1].placement and states[0].moved > 0


@pytest.mark.slow
def test_grammars_hold_drafts_and_answers_of_every_rank() -> None:
    schema = JsonSchema(
        {"type": "object", "properties": {"size": {"type": "integer"}, "name": {"enum": ["red", "green"]}}}
    )
    tiny = (
        "model=v41_tiny",
        "model.dtype=float64",
        "cost=roofline",
        "sampling=reproducible",
        "scheduler.max_num_seqs=4",
    )
    rng = np.random.default_rng(1)
    mine = [
        Ask(rng.integers(3, 2000, 9 + seed), SamplingParams(max_tokens=12, seed=seed, temperature=1.0, grammar=grammar))
        for seed, grammar in enumerate((schema, None, Regex("[a-f]{3,9}!")))
    ]
    one = alone(small_plan(*tiny), mine)[1]
    runs = together(small_plan(*tiny, "parallel=ep2", *DRAFTS, AHEAD), [mine[:2], mine[2:]])
    assert [*runs[0].heard, *runs[1].heard] == one
