"""What a plan says that a step needs is what the model's own code allocates for it, traced launch by launch on no device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from msgspec import structs
from traced_bytes import META, ops_without_memory, traced, without_launches

from deepinfer.arch.routing import skewed_load
from deepinfer.cli.bench_slice import share_of
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import limits_of
from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.rank_slice.experts import Pairs
from deepinfer.engine.rank_slice.model import SliceModel, slice_model
from deepinfer.engine.worst_steps import prompt_step
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.decode_inputs import StepSize
from deepinfer.model.fused.decode_step import DecodeStep
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.plan.fused_step import StepShape, forward_bytes
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan
from deepinfer.plan.workspace import CHUNK_ROWS, KERNEL_BYTES

CLOSE = 0.03
LARGE = ("scheduler.max_num_batched_tokens=8Ki", "scheduler.max_prefill_tokens=8Ki", "model.max_model_len=16Ki")
LONG = ("scheduler.max_num_batched_tokens=2Ki", "model.max_model_len=256Ki", "scheduler.max_num_seqs=4")
CASES = {
    "true width, one of 64": ("model=v41_flash", "parallel=ep64", *LARGE),
    "true width, one of 8, no drafts": ("model=v41_flash", "parallel=ep8", *LARGE, "speculation=none"),
    "true width, long": ("model=v41_flash", "parallel=ep8", *LONG),
    "tiny": ("model=v41_tiny",),
}


def planned(name: str) -> Plan:
    drafts = () if any(word.startswith("speculation=") for word in CASES[name]) else ("speculation=dspark",)
    spec = load("hardware=h200", "model.weights=dummy", *drafts, *CASES[name])
    return resolve(spec, probe(spec))


def built(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[SliceModel, ModelCache]:
    without_launches(monkeypatch)
    config = plan.model.config
    share, ops = share_of(plan, plan.layout.roles[0]), ops_without_memory(config)
    made = slice_model(config, share, ops, plan.cache, META, compact=False, max_positions=plan.model.max_model_len)
    slots = plan.memory[0].num_state_slots + 1
    return made, ModelCache(config, plan.cache, num_blocks=8, num_slots=slots, device=META)


def worst_prompt(limits: EngineLimits) -> StepInput:
    """A chunk at the end of the longest context beside all other sequences, as the worst steps have it."""
    others, length = np.arange(1, limits.max_num_seqs), limits.max_model_len - 1
    rows = min(length, limits.max_num_batched_tokens - len(others))
    state = DecodeState(limits.max_num_seqs, limits.max_model_len, limits.ngram_size)
    state.num_tokens[:], state.length_end[:] = 4, limits.max_model_len
    state.num_tokens[0] = length
    limits = structs.replace(limits, num_blocks=8, draft_depth=0)
    return state.resolve(prompt_step(others, length - rows, rows, limits)).step


def entries_of(plan: Plan) -> int:
    return -(-plan.model.max_model_len // plan.cache.block_tokens) * plan.cache.block_tokens


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_the_largest_pass_takes_what_is_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(name)
    made, cache = built(plan, monkeypatch)
    load_ = made.route("skewed").trunk.load
    step, features = worst_prompt(limits_of(plan)), made.drafter is not None
    run = made.model.forward_with_features if features else made.model.forward
    with torch.inference_mode():
        run(step, cache)  # what kernels share is made
        with traced() as trace:
            run(step, cache)
    shape = StepShape(rows=step.num_rows, entries=entries_of(plan), far=True, features=features, load=load_)
    reckoned = forward_bytes(plan.model.config, shape, 2)
    assert reckoned == pytest.approx(trace.peak, rel=CLOSE)
    chunks_are_eager = step.num_rows > 2048
    assert not chunks_are_eager or plan.memory[0].step_bytes == pytest.approx(trace.peak, rel=CLOSE)


@pytest.mark.parametrize("name", ["true width, one of 64", "tiny"])
def test_the_largest_graph_takes_what_is_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(name)
    made, cache = built(plan, monkeypatch)
    limits, features = limits_of(plan), made.drafter is not None
    load_ = made.route("skewed").trunk.load
    rows = CHUNK_ROWS[-1]
    sequences = DeviceSequences(limits.max_num_seqs, limits.max_model_len, limits.ngram_size, limits.draft_depth, META)
    launch = DecodeStep(made.model, cache, sequences, features=features)
    size = StepSize(rows, limits.max_num_seqs, launch.max_blocks, True)
    with torch.inference_mode():
        launch._launch(size)
        with traced() as trace:
            launch._launch(size)
    shape = StepShape(rows=rows, entries=entries_of(plan), features=features, load=load_)
    assert forward_bytes(plan.model.config, shape, 2) == pytest.approx(trace.peak, rel=2 * CLOSE)


def test_kernels_share_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    without_launches(monkeypatch)
    from deepinfer.kernels import triton_bf16_linear

    triton_bf16_linear._workspace.cache_clear()
    assert sum(x.nbytes for x in triton_bf16_linear._workspace(META)) == KERNEL_BYTES


@pytest.mark.parametrize(("ranks", "experts"), [(1, 384), (8, 384), (64, 384), (64, 128)])
def test_the_busiest_rank_is_that_of_the_slice(ranks: int, experts: int) -> None:
    assert Pairs(ranks, experts, 6, "skewed", META).load == pytest.approx(skewed_load(ranks, experts))
