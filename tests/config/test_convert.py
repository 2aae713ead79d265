"""From plain data to a Spec: every fault at once, each with what to type."""

import shlex
from typing import Any

import msgspec
import pytest

from deepinfer.config.chips import AutoHardware, CpuChip
from deepinfer.config.compose import load
from deepinfer.config.convert import convert
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.specs import NoSpeculation, Spec
from deepinfer.serving.call_arguments import all_overrides


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *groups, key = path.split(".")
    for group in groups:
        data = data[group]
    data[key] = value


def refuse(data: dict[str, Any]) -> Refused:
    with pytest.raises(Refused) as refused:
        convert(data)
    return refused.value


def test_default(data: dict[str, Any]) -> None:
    spec = convert(data)
    assert spec.task.kind == "generate"
    assert isinstance(spec.hardware, CpuChip)
    assert isinstance(spec.speculation, NoSpeculation)
    assert spec.parallel.num_ranks == 1
    assert spec.cache.block_tokens == 128
    assert spec.sampling.stop == ()


def test_spec_is_frozen_and_round_trips(data: dict[str, Any]) -> None:
    spec = convert(data)
    with pytest.raises(AttributeError):
        spec.cache.block_tokens = 64  # type: ignore[misc, assignment]
    assert convert(msgspec.json.decode(msgspec.json.encode(spec))) == spec


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("cache.memory_bytes", "80GiB", 80 * 2**30),
        ("cache.memory_bytes", 5e8, 500_000_000),
        ("cache.memory_bytes", "5e8", 500_000_000),
        ("cache.memory_bytes", "auto", "auto"),
        ("cache.num_blocks", 1024, 1024),
        ("cache.num_blocks", "auto", "auto"),
        ("model.max_model_len", "64k", 64_000),
        ("model.max_model_len", "64Ki", 65_536),
        ("model.revision", "12E34", "12E34"),
        ("sampling.min_p", "1e-3", 0.001),
        ("sampling.min_p", 1, 1.0),
        ("sampling.seed", None, None),
        ("sampling.seed", 2**63 - 1, 2**63 - 1),
        ("sampling.logit_bias", {5: 1.5, "7": -2}, {5: 1.5, 7: -2.0}),
        ("sampling.stop", ["a", "b"], ("a", "b")),
        ("scheduler.watchdog_s", "250ms", 0.25),
        ("scheduler.async_depth", 1, 1),
        ("scheduler.async_depth", "auto", "auto"),
        ("kernels.ops", {"linear_fp8": "reference"}, {"linear_fp8": "reference"}),
    ],
)
def test_accepts(data: dict[str, Any], path: str, value: Any, wanted: Any) -> None:
    put(data, path, value)
    group, key = path.split(".")
    found = getattr(getattr(convert(data), group), key)
    assert found == wanted
    assert type(found) is type(wanted)


BAD = [
    ("sampling.temperature", -1, "at least 0", ""),
    ("sampling.temperature", "hot", "'hot'", ""),
    ("sampling.temperature", float("nan"), "nan", ""),
    ("sampling.temperature", float("inf"), "inf", ""),
    ("sampling.temperature", True, "true", ""),
    ("sampling.temperature", None, "null", ""),
    ("sampling.top_p", 0, "above 0", ""),
    ("sampling.top_p", 1.01, "at most 1", ""),
    ("sampling.top_k", 1.5, "whole number", ""),
    ("sampling.min_p", 2, "at most 1", ""),
    ("sampling.repetition_penalty", 0, "at least 0.01", ""),
    ("sampling.presence_penalty", 2.5, "at most 2", ""),
    ("sampling.frequency_penalty", -3, "at least -2", ""),
    ("sampling.max_tokens", 0, "at least 1", ""),
    ("sampling.n", True, "true", ""),
    ("sampling.n", 0, "at least 1", ""),
    ("sampling.seed", 2**63, "at most 9223372036854775807", ""),
    ("sampling.seed", -1, "at least 0", ""),
    ("sampling.seed", "100", "'100'", ""),
    ("sampling.seed", True, "true", ""),
    ("sampling.stop", "x", "wanted a list", "sampling.stop=[x]"),
    ("sampling.stop", [5], "the number 5", ""),
    ("sampling.stop_token_ids", [-1], "at least 0", ""),
    ("sampling.logit_bias", {-1: 1.0}, "at least 0", ""),
    ("sampling.logit_bias", {"abc": 1.0}, "'abc'", ""),
    ("sampling.logit_bias", {5: "much"}, "'much'", ""),
    ("sampling.logit_bias", [5], "wanted a mapping", ""),
    ("sampling.ignore_eos", "yes", "true or false", ""),
    ("sampling.logprobs_mode", "rwa", "did you mean raw?", ""),
    ("cache.num_blocks", "atuo", "did you mean auto?", ""),
    ("cache.num_blocks", -5, "at least 1", ""),
    ("cache.memory_bytes", "80gib", "spelled GiB", ""),
    ("cache.memory_bytes", "1.5", "whole number", ""),
    ("cache.block_tokens", 256, "wanted 128", ""),
    ("scheduler.async_depth", 2, "wanted auto, 0 or 1", ""),
    ("scheduler.async_depth", False, "wanted auto, 0 or 1", ""),
    ("scheduler.policy", "fcsf", "fcfs", ""),
    ("model.revision", 12e34, "wanted text", ""),
    ("model.dtype", "fp16", "bfloat16", ""),
    ("model.numerics", "ful", "did you mean full?", ""),
    ("model.path", "???", "mandatory", "model.path=…"),
    ("serving.port", 70000, "at most 65535", ""),
    ("sampling.max_token", 3, "no key 'max_token'", "sampling.max_tokens=3"),
    ("executor._target_", "os.system", "no key '_target_'", ""),
    (
        "speculation.verify",
        "coupled",
        "it belongs to speculation=dspark",
        "speculation=dspark speculation.verify=coupled",
    ),
    ("replay.keep_tokens", 300, "mask or compact", "replay=mask replay.keep_tokens=300"),
    ("speculation.kind", "dsparc", "no such kind", "speculation=dspark"),
    ("speculation.kind", None, "no kind is given", ""),
    ("speculation.kind", False, "found false", ""),
    ("parallel", "ep2", "is a group", "parallel=ep2"),
    ("parallel", None, "found null", ""),
    ("max_tokens", 5, "no key 'max_tokens'", "sampling.max_tokens=5"),
    ("paralel", "ep2", "no key 'paralel'", "parallel=ep2"),
    ("tp", 8, "no key 'tp'", "parallel=ep8"),
]


@pytest.mark.parametrize(("path", "value", "says", "fix"), BAD, ids=[f"{path}={value}" for path, value, *_ in BAD])
def test_refuses(data: dict[str, Any], path: str, value: Any, says: str, fix: str) -> None:
    put(data, path, value)
    refused = refuse(data)
    (problem,) = refused.problems
    assert problem.asked.startswith(path)
    assert says in str(problem)
    assert refused.exit_code is ExitCode.CONFIG
    if fix:
        assert problem.fix == fix
    elif problem.fix:
        assert "…" not in problem.fix and load(*shlex.split(problem.fix)), "what is offered is legal"


NEAREST = [
    ("speculation=ngram", "speculation.depth=0", "speculation.depth=1"),
    ("speculation=ngram", "speculation.depth=500", "speculation.depth=32"),
    ("speculation=ngram", "speculation.depth=99999999999999999999", "speculation.depth=32"),
    ("speculation=ngram", "speculation.verify=foo", "speculation.verify=auto"),
    ("speculation=ngram", "speculation.verify=copled", "speculation.verify=coupled"),
    ("scheduler=continuous", "scheduler.async_depth=2", "scheduler.async_depth=1"),
    ("executor=simulated", "executor.acceptance=2", "executor.acceptance=1"),
    ("replay=none", "replay.on_hit=foo", "replay.on_hit=snapshot"),
    ("cache=prefix", "cache.snapshot_every=0", "cache.snapshot_every=1"),
    ("cache=prefix", "cache.block_tokens=64", "cache.block_tokens=128"),
    ("cache=prefix", "cache.num_blocks=1e30", "cache.num_blocks=auto"),
    ("cache=prefix", "cache.memory_bytes=80gib", "cache.memory_bytes=80GiB"),
    ("sampling=default", "sampling.top_k=1.5", "sampling.top_k=2"),
    ("sampling=default", "sampling.ignore_eos=yes", "sampling.ignore_eos=true"),
    ("speculation=dspark", "speculation.verify_length=3", "speculation=dspark_fixed speculation.verify_length=3"),
    ("speculation=dspark", "speculation.dept=500", "speculation.depth=32"),
    ("scheduler=continuous", "scheduler.asinc_depth=7", "scheduler.async_depth=1"),
    ("sampling=default", "max_tokens=0", "sampling.max_tokens=1"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("option", "typed", "fix"), NEAREST, ids=[typed for _, typed, _ in NEAREST])
def test_what_is_offered_is_the_nearest_legal_value(option: str, typed: str, fix: str) -> None:
    with pytest.raises(Refused) as refused:
        load(option, typed)
    (problem,) = refused.value.problems
    assert problem.fix == fix
    load(option, *shlex.split(fix)) if fix.partition("=")[0] != option.partition("=")[0] else load(*shlex.split(fix))


def test_numbers_beyond_everything_are_echoed_as_typed() -> None:
    with pytest.raises(Refused) as refused:
        load("cache.num_blocks=1e30", "speculation=ngram", "speculation.depth=99999999999999999999")
    text = str(refused.value)
    assert "more than anything there is" in text and "takes a row of every step" in text and "0" * 25 not in text


def test_a_schema_as_a_mapping_is_offered_as_json() -> None:
    with pytest.raises(Refused) as refused:
        load("sampling.json_schema.type=object")
    (problem,) = refused.value.problems
    (fix,) = shlex.split(problem.fix)
    assert load(fix).sampling.json_schema == '{"type": "object"}'


def test_a_schema_as_a_keyword_of_the_library_is_taken() -> None:
    (override,) = all_overrides((), {"sampling__json_schema": {"type": "object"}})
    assert load(override).sampling.json_schema == '{"type": "object"}'


@pytest.mark.parametrize("key", ["choice", "stop", "bad_words"])
def test_an_empty_text_is_refused_with_its_reason(key: str) -> None:
    with pytest.raises(Refused, match="at least 1 character; a text of no characters says nothing"):
        load(f'sampling.{key}=[a,""]')


def test_all_faults_at_once(data: dict[str, Any]) -> None:
    """Every bad row of the table, one key of a group each, is reported in one go."""
    rows = {path: value for path, value, *_ in BAD if path.count(".") == 1 and not path.startswith("speculation")}
    for path, value in rows.items():
        put(data, path, value)
    del data["cluster"]
    asked = {problem.asked.partition("=")[0] for problem in refuse(data).problems}
    for path in [*rows, "cluster"]:
        assert any(name.startswith(path) for name in asked), path


def test_missing_keys_and_groups_are_all_named(data: dict[str, Any]) -> None:
    del data["cache"]["num_blocks"], data["sampling"]["top_p"], data["workload"]
    assert {problem.asked for problem in refuse(data).problems} == {"cache.num_blocks", "sampling.top_p", "workload"}


def test_a_place_inside_a_deployment_wants_the_group_syntax(data: dict[str, Any]) -> None:
    prefill = {"replicas": 1, "hardware": {"kind": "same"}, "parallel": "ep2"}
    data["deploy"] = {"kind": "disaggregated", "prefill": prefill, "decode": 3}
    first, second = refuse(data).problems
    assert first.fix == "parallel@deploy.prefill.parallel=ep2"
    assert second.asked == "deploy.decode=3"


def test_bare_chip_fact_replaces_value_and_source(data: dict[str, Any]) -> None:
    data["hardware"]["memory_bytes"] = "64GiB"
    hardware = convert(data).hardware
    assert isinstance(hardware, CpuChip)
    assert (hardware.memory_bytes.value, hardware.memory_bytes.source) == (64 * 2**30, "as given")


def test_chip_fact_without_a_date_is_refused(data: dict[str, Any]) -> None:
    del data["hardware"]["memory_bytes"]["date"]
    assert [problem.asked for problem in refuse(data).problems] == ["hardware.memory_bytes.date"]


def test_auto_hardware_has_no_facts(data: dict[str, Any]) -> None:
    data["hardware"] = {"kind": "auto"}
    assert convert(data).hardware == AutoHardware()


def test_same_data_in_another_order_is_the_same_spec(data: dict[str, Any]) -> None:
    backwards = {group: dict(reversed(list(keys.items()))) for group, keys in reversed(list(data.items()))}
    assert convert(backwards) == convert(data)


def test_spec_has_one_field_per_group(data: dict[str, Any]) -> None:
    assert set(Spec.__struct_fields__) == set(data)
