"""From plans to engines: sizes, sources of weights, refusals."""

import json

import numpy as np
import pytest
from golden_engine import GOLDEN, golden_graph, golden_plan, run

from deepinfer.config.compose import load
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import probe
from deepinfer.engine.build import build_graph, limits_of, tokenizer_of
from deepinfer.interfaces import SamplingParams
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.ops import reference
from deepinfer.ops.native import native as native_ops
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

BIG = ("hardware.memory_bytes=4TiB", "model.max_model_len=1048576", "scheduler.max_num_seqs=256")


def plan_of(*overrides: str) -> Plan:
    spec = load(*overrides)
    return resolve(spec, probe(spec))


def test_the_engine_has_the_sizes_of_the_plan() -> None:
    plan = golden_plan("cache.num_blocks=9", "scheduler.max_prefill_tokens=33", "scheduler.max_num_batched_tokens=77")
    limits = limits_of(plan)
    assert (limits.num_blocks, limits.max_prefill_tokens, limits.max_num_batched_tokens) == (9, 33, 77)
    assert (limits.vocab_size, limits.ngram_size, limits.max_model_len, limits.max_num_seqs) == (2048, 4, 512, 8)
    assert limits.eos_token_ids == (1,)
    graph = build_graph(plan)
    assert graph.cache.nbytes == sum(plan.memory[0].item(name).num_bytes for name in ("kv_pool", "state"))
    assert graph.executor.threads == plan.numerics.threads == 1
    assert graph.tokenizer is not None and graph.tokenizer.encode("a") == tokenizer_of(plan).encode("a")


def test_draft_weights_are_not_loaded_where_nothing_is_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.model import v41

    seen: list[str] = []
    original = v41.V41Model.__init__

    def spy(self, config, weights, *args, **more):
        seen.extend(weights)
        original(self, config, weights, *args, **more)

    monkeypatch.setattr(v41.V41Model, "__init__", spy)
    golden_graph()
    assert seen and not [name for name in seen if name.startswith("mtp.")]


def test_ops_of_several_backends_form_one_record() -> None:
    plan = golden_plan()
    chosen = {choice.op: choice.implementation for choice in plan.ops}
    assert len(set(chosen.values())) == 2, "the default on a CPU takes compiled loops and twins"
    ops, native, twins = golden_graph().model.ops, native_ops(), reference()
    for op, implementation in chosen.items():
        assert getattr(ops, op) is not None
        if op == "linear":
            assert implementation.endswith(":reference") and ops.linear is twins.linear
        if op == "rms_norm":
            assert implementation.endswith(":native") and ops.rms_norm is native.rms_norm
    assert ops.dtypes == native.dtypes & twins.dtypes and ops.name == "native+reference"
    assert golden_graph("kernels=reference").model.ops.name == "reference"


def test_dummy_weights_run() -> None:
    graph = golden_graph("model.weights=dummy")
    outs = run(graph, [np.array([1, 2, 3])], [SamplingParams(max_tokens=3, seed=1, ignore_eos=True)])
    assert len(outs[0]["tokens"]) == 3


def test_a_simulated_executor_needs_no_weights() -> None:
    graph = build_graph(golden_plan("executor=simulated"))
    assert graph.model is None and graph.cache is None
    outs = run(graph, [np.array([1, 2, 3])] * 2, [SamplingParams(max_tokens=4, seed=1, ignore_eos=True)] * 2)
    assert outs[0] == outs[1] and len(outs[0]["tokens"]) == 4
    assert graph.engine.stats().host_s == 0


def test_the_full_model_is_simulated_with_sequences_of_a_million_tokens() -> None:
    plan = plan_of("model=v41_flash", "hardware=h200", "model.weights=dummy", "executor=simulated", *BIG)
    graph = build_graph(plan)
    assert graph.limits.max_model_len == 2**20 and graph.limits.max_num_seqs == 256
    prompt = np.arange(3000)
    outs = run(graph, [prompt], [SamplingParams(max_tokens=3, seed=1, ignore_eos=True)])
    assert len(outs[0]["tokens"]) == 3


def test_everything_without_code_is_refused_by_name_and_at_once() -> None:
    plan = plan_of("model=v41_flash", "hardware=ascend950", "parallel=ep8", "parallel.attention_dp=16")
    with pytest.raises(Refused) as caught:
        build_graph(plan)
    asked = [problem.asked for problem in caught.value.problems]
    assert {"ops.ascend", "parallel: 16 ranks"} <= set(asked)
    assert caught.value.exit_code == ExitCode.OTHER


def test_a_checkpoint_without_its_tokenizer_is_refused(tmp_path) -> None:
    for file in (GOLDEN / "tiny_a").iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    plan = golden_plan(f"model.path={tmp_path}")
    assert tokenizer_of(plan) is None
    with pytest.raises(CheckpointErrors, match=r"tokenizer\.json is missing"):
        build_graph(plan)


def test_a_plan_that_travelled_as_json_builds_the_same_engine() -> None:
    plan = golden_plan()
    params = [SamplingParams(max_tokens=4, temperature=0.0)]
    prompt = [np.array(json.loads((GOLDEN / "tiny_a" / "prompts.json").read_text())["prompts"][0])]
    first = run(build_graph(plan), prompt, params)
    assert run(build_graph(Plan.from_json(plan.to_json())), prompt, params) == first
