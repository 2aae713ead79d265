"""Every file of conf/: it says what it is for, composes, converts, and names nothing that YAML would misread."""

from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from deepinfer.config.argv import VERBS
from deepinfer.config.chips import Chip, Fact, Link
from deepinfer.config.compose import compose_data, load
from deepinfer.config.convert import convert
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.runnable import NOT_BUILT, many_ranks, plan_only, unbuilt
from deepinfer.config.specs import Spec

CONF = Path(str(files("deepinfer.conf")))
OPTIONS = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.glob("*/*.yaml"))
STRUCTS = [struct for structs in BUILT_IN.values() for struct in structs]


def purpose(option: str) -> str:
    """The first line of a file that people read; a header for Hydra may stand above it."""
    lines = (CONF / f"{option}.yaml").read_text("utf-8").splitlines()
    return next(line for line in lines if not line.startswith("# @"))


def option_dict(option: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(CONF / f"{option}.yaml"))


def spec_with(option: str, composed: dict[str, Any]) -> Spec:
    """The default with one option: through Hydra where its file has a defaults list, else put in by hand, as Hydra is slow."""
    group, name = option.split("/")
    own = option_dict(option)
    return load(f"{group}={name}") if "defaults" in own else convert(composed | {group: own})


def test_the_tree_is_complete() -> None:
    groups = {option.partition("/")[0] for option in OPTIONS}
    assert groups == set(Spec.__struct_fields__)
    assert len(OPTIONS) >= 70
    expected = """
        task/generate task/plan task/serve task/chat task/bench task/simulate task/tune task/doctor task/launch
        task/run_batch model/auto model/v41_tiny model/v41_flash hardware/cpu hardware/h200 hardware/b200 hardware/gb200
        hardware/ascend950 hardware/ascend950pr hardware/ascend950dt hardware/virtual hardware/auto parallel/single
        parallel/dp2 parallel/cp2 parallel/ep2 parallel/ep4 parallel/ep8 parallel/ep64 parallel/ep128 deploy/colocated
        deploy/disaggregated speculation/none speculation/dspark speculation/dspark_fixed speculation/ngram
        sampling/default sampling/greedy sampling/reproducible replay/none replay/mask replay/compact
        scheduler/continuous executor/auto executor/local executor/distributed executor/simulated cache/paged
        cache/prefix kernels/auto kernels/reference kernels/triton kernels/deepseek grammar/none grammar/llguidance
        grammar/xgrammar serving/default workload/chat workload/agentic workload/long_context workload/code
        workload/trace launcher/local launcher/torchrun launcher/slurm launcher/ray launcher/kubernetes cluster/none
        sweep/none"""
    assert set(expected.split()) <= set(OPTIONS)


@pytest.mark.parametrize("option", [*OPTIONS, "config"])
def test_first_line_says_what_it_is_for(option: str) -> None:
    first = purpose(option)
    assert first.startswith("# ")
    assert 15 <= len(first) <= 160
    assert first.endswith(".")


def test_every_purpose_is_its_own() -> None:
    first = [purpose(option) for option in OPTIONS]
    assert len(set(first)) == len(first)


@pytest.mark.parametrize("option", OPTIONS)
def test_names_are_yaml_text(option: str) -> None:
    for word in (*option.split("/"), option_dict(option).get("kind", "text")):
        assert yaml.safe_load(str(word)) == str(word), f"YAML reads {word} as {yaml.safe_load(str(word))!r}"


@pytest.mark.parametrize("tag", [str(struct.__struct_config__.tag) for struct in STRUCTS])
def test_tags_are_yaml_text(tag: str) -> None:
    assert yaml.safe_load(tag) == tag


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose_data([]).data


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_converts(option: str, composed: dict[str, Any]) -> None:
    group = option.partition("/")[0]
    component = getattr(spec_with(option, composed), group)
    assert component.kind == option_dict(option).get("kind", component.kind)


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.startswith("hardware/")])
def test_every_chip_fact_has_source_and_date(option: str, composed: dict[str, Any]) -> None:
    hardware = spec_with(option, composed).hardware
    if not isinstance(hardware, Chip):
        assert option in ("hardware/auto", "hardware/same")
        return
    facts = [hardware.architecture, hardware.memory_bytes, hardware.memory_bandwidth_bytes_per_s]
    for named in (hardware.peak_flops_by_dtype, hardware.links, hardware.toolkit, hardware.platform):
        facts += named.values()  # type: ignore[arg-type]
    assert len(facts) > 3
    for fact in facts:
        assert isinstance(fact, Fact | Link)
        assert len(fact.source) > 5 and fact.date
    assert hardware.op_backends[-1] == "reference"


def test_reproducible_is_the_default_and_one_promise_more() -> None:
    default, reproducible = load("sampling=default").sampling, load("sampling=reproducible").sampling
    differing = [key for key in default.__struct_fields__ if getattr(default, key) != getattr(reproducible, key)]
    assert differing == ["reproducible"]
    assert load("sampling=greedy").sampling.temperature == 0


def test_parallel_options_hold_degrees_only() -> None:
    for option in (option for option in OPTIONS if option.startswith("parallel/")):
        degrees = convert(compose_data([f"parallel={option[9:]}"]).data).parallel
        assert degrees.num_ranks % degrees.expert == 0
        name = option[9:].lstrip("cdpe")
        assert degrees.num_ranks == (int(name) if name.isdecimal() else 1)


def test_verbs_are_the_options_of_task() -> None:
    assert set(VERBS) == {option[5:] for option in OPTIONS if option.startswith("task/")}


@pytest.mark.parametrize("struct", [struct for struct in STRUCTS if struct.implementation], ids=lambda s: s.__name__)
def test_implementations_resolve(struct: Any) -> None:
    """A string that names code which is not there belongs into the list of what is not built."""
    module, _, name = struct.implementation.partition(":")
    group = next(base.__name__.lower() for base, structs in BUILT_IN.items() if struct in structs)
    if struct.__struct_config__.tag in NOT_BUILT.get(f"{group}.kind", ()):
        assert name.isidentifier() and module.startswith("deepinfer.")
        return
    assert find_spec(module) is not None, f"{struct.implementation} is not there"
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_not_built_is_refused_by_name(option: str, composed: dict[str, Any]) -> None:
    group, name = option.split("/")
    spec = (
        load(f"{group}={name}")
        if "defaults" in option_dict(option)
        else convert(composed | {group: option_dict(option)})
    )
    ranks = many_ranks(spec.parallel.num_ranks, [spec.hardware.kind], "parallel=single")
    problems = [*unbuilt(spec), *ranks]
    kind = getattr(spec, group).kind
    if group == "cluster":  # a combination: what of it is not built is named by its own group
        named = {problem.asked.partition("=")[0].partition(":")[0] for problem in problems}
        runs = not plan_only(spec.hardware.kind, spec.hardware.architecture.value)
        assert named <= set(Spec.__struct_fields__) and (problems or runs)
        return
    listed = kind in NOT_BUILT.get(f"{group}.kind", ())
    architecture = spec.hardware.architecture.value if isinstance(spec.hardware, Chip) else ""
    assert bool(problems) == (listed or bool(group == "hardware" and plan_only(kind, architecture)))
    for problem in problems:
        assert kind in problem.asked or architecture in problem.asked
        assert problem.fix


def test_of_nvidias_chips_those_run_that_kernels_are_written_for() -> None:
    architectures = {option: option_dict(f"hardware/{option}") for option in ("h100", "h200", "b200", "gb300")}
    refused = {
        option: plan_only(sheet["kind"], sheet["architecture"]["value"]) for option, sheet in architectures.items()
    }
    assert refused == {"h100": "", "h200": "", "b200": "hardware.architecture", "gb300": "hardware.architecture"}
