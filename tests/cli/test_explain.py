"""`plan explain=KEY`: who set it, what it replaced, how an auto was settled, and what really moves when it changes."""

import json
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.decided import decision_of
from deepinfer.cli.explain import all_parts, explain, parts_called
from deepinfer.cli.main import main
from deepinfer.cli.parts import parts_of
from deepinfer.cli.plan import run
from deepinfer.cli.what_if import Settled
from deepinfer.cli.words import MEANING, words_of
from deepinfer.config.argv import Invocation
from deepinfer.config.compose import load_with_choices
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.config.keys import ANY, leaf_keys
from deepinfer.config.neighbours import neighbours, other_options
from deepinfer.config.specs import Spec
from deepinfer.plan.render import rows
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

LITERAL = ("hardware=ascend950", "parallel=ep64")
SITE = """# @package _global_
defaults:
  - override /parallel: ep8
  - override /hardware: b200

scheduler:
  max_num_seqs: 64
sampling:
  stop: [END]
cluster:
  kind: none
"""

Capture = pytest.CaptureFixture[str]
Loaded = tuple[Spec, dict[str, str]]


def told(capsys: Capture, key: str, *arguments: str) -> dict[str, Any]:
    """The one explanation of a key, as JSON."""
    assert main(["plan", *arguments, f"explain={key}", "format=json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert isinstance(one, dict)
    return one


@pytest.fixture(scope="module")
def default() -> Loaded:
    return load_with_choices("task=plan")


def plan_of(*overrides: str) -> Plan:
    spec, choices = load_with_choices("task=plan", *overrides)
    return resolve(spec, probe(spec), choices)


@pytest.mark.parametrize(
    ("key", "arguments", "lines"),
    [
        (
            "model.dtype",
            (),
            [
                "model.dtype = bfloat16",
                "asked     auto (conf/model/auto.yaml:",
                "because   the release computes in it",
                "second    float32",
                "tried     model.dtype=float32",
            ],
        ),
        (
            "parallel.expert",
            (),
            [
                "parallel.expert = 64",
                "asked     64 (conf/parallel/ep64.yaml:",
                "through   parallel=ep64 (command line: parallel=ep64)",
                "tried     parallel.expert=128",
                "refused   64 ranks are not divisible by 128",
                "tried     parallel.expert=32",
                "moves     cost",
            ],
        ),
        (
            "sampling.temperature",
            ("sampling=greedy",),
            ["asked     0.0 (conf/sampling/greedy.yaml:", "replaced  auto (conf/sampling/default.yaml:"],
        ),
        (
            "model.revision",
            ("model.revision=abc",),
            ["asked     abc (command line: ", "tried     nothing: it is free text"],
        ),
        (
            "cache.num_blocks",
            ("cache.num_blocks=9",),
            ["cache.num_blocks = 9", "replaced  auto (conf/cache/paged.yaml:"],
        ),
        ("memory", (), ["memory.embed = 1,323,827,200 B a rank", "because   estimate"]),
        ("task", (), ["task = plan", "replaced  generate (conf/config.yaml:", "tried     nothing: another task"]),
    ],
)
@pytest.mark.sample(4)
def test_text(capsys: Capture, key: str, arguments: tuple[str, ...], lines: list[str]) -> None:
    assert main(["plan", *LITERAL, *arguments, f"explain={key}"]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    at = 0
    for line in lines:  # in this order
        at = next((i + 1 for i in range(at, len(said)) if said[i].startswith(line)), 0)
        assert at, f"{line!r} is missing, or stands too early, in {said}"


def test_a_cluster_file_beats_the_default_and_the_command_line_beats_it(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "cluster" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(SITE)
    here = (f"--config-dir={tmp_path}", "cluster=mine", "scheduler.max_num_seqs=16", "sampling.stop=[a, b]")
    spec, choices = load_with_choices(*here[1:], config_dir=str(tmp_path))
    invocation = Invocation(verb="plan", overrides=here[1:], choices=choices, config_dir=str(tmp_path))
    seqs, stop, parallel = (
        explain(key, spec, invocation)[0] for key in ("scheduler.max_num_seqs", "sampling.stop", "parallel")
    )
    assert (seqs.value, seqs.origin) == ("16", "command line: scheduler.max_num_seqs=16")
    assert (seqs.replaced[0].value, seqs.replaced[0].origin) == ("64", f"{file}:7")
    assert seqs.replaced[1].value == "32" and seqs.replaced[1].origin.startswith("conf/scheduler/")
    assert stop.value == '["a", "b"]'
    assert [former.value for former in stop.replaced] == ['["END"]', "[]"]
    assert (parallel.value, parallel.origin) == ("ep8", f"{file}:3")
    assert [(former.value, former.origin) for former in parallel.replaced] == [("single", "conf/config.yaml:6")]
    tried = told(capsys, "parallel", *here)["tried"]
    assert "refused" not in tried[-1], "the cluster's hardware stays in force"


def test_what_moves_is_what_two_plans_say(capsys: Capture) -> None:
    """The claimed neighbours against plans made apart."""
    base = ("hardware=b200", "parallel=ep8")
    (tried,) = told(capsys, "scheduler.max_num_seqs", *base)["tried"]
    assert tried["override"] == "scheduler.max_num_seqs=64"
    moved = {f"{change['section']}.{change['key']}": (change["before"], change["after"]) for change in tried["changes"]}
    before, after = plan_of(*base), plan_of(*base, tried["override"])
    state = [plan.memory[0].item("state").num_bytes for plan in (before, after)]
    assert moved["memory.state"] == tuple(state)
    assert moved["capacity.sequences"] == (before.capacity.sequences, after.capacity.sequences)
    assert moved["digest.rank"] == (before.rank_digest, after.rank_digest)
    assert "digest.numerics" not in moved and before.numerics_digest == after.numerics_digest
    assert "scheduler.max_num_seqs" not in moved and not any("settings" in path for path in moved)


def test_a_value_that_nothing_depends_on(capsys: Capture) -> None:
    assert main(["plan", "explain=serving.port"]) == 0
    assert "moves     nothing in this plan" in capsys.readouterr().out


def test_an_op_a_part_of_the_graph_and_a_figure(capsys: Capture) -> None:
    op = told(capsys, "attention", *LITERAL)
    assert op["key"] == "ops.attention" and op["because"].startswith("first of the chip's list")
    (pinned,) = op["tried"]
    assert pinned["override"] == "kernels.ops={attention: reference}"
    assert {"section": "ops", "key": "attention", "before": op["value"], "after": "reference"} in pinned["changes"]
    plan = plan_of(*LITERAL)
    parts = parts_of(plan)
    node = parts["graph.scheduler"]
    assert (node.needs, node.needed_by, node.lever) == (("cache",), ("engine",), "scheduler")
    assert plan.cost.figure("tokens_per_s_per_gpu").label in parts["cost.tokens_per_s_per_gpu"].because
    assert parts["cost.decode"].value.startswith("bound by ")
    assert parts["memory.kv_pool"].value.endswith(" B a rank")
    assert set(parts) >= {"capacity.tokens", "ops.linear"}


def test_an_auto_is_varied_around_what_it_became(capsys: Capture) -> None:
    blocks = plan_of(*LITERAL).capacity.num_blocks
    one = told(capsys, "cache.num_blocks", *LITERAL)
    assert (one["value"], one["asked"]) == (str(blocks), "auto")
    assert one["tried"][0]["override"] == f"cache.num_blocks={2 * blocks}"
    assert all("refused" in tried for tried in one["tried"][:-1])


def test_a_group_of_one_side(capsys: Capture) -> None:
    sides = (
        "hardware=b200",
        "deploy=disaggregated",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep8",
    )
    one = told(capsys, "deploy.decode.parallel", *sides)
    assert (one["key"], one["value"]) == ("parallel@deploy.decode.parallel", "ep8")
    assert one["origin"] == "command line: parallel@deploy.decode.parallel=ep8"
    (former,) = one["replaced"]
    assert former["value"] == "single" and former["origin"].startswith("conf/deploy/disaggregated.yaml:")
    assert {change["section"] for change in one["tried"][-1]["changes"]} >= {"layout", "memory", "digest"}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ({"explain": "model.dtpye"}, "plan explain=model.dtype"),
        ({"explain": "attentoin"}, "attention"),
        ({"explain": "model.dtype", "format": "mermaid"}, "plan explain=model.dtype"),
        ({"explain": "model.dtype", "format": "ranks"}, "plan explain=model.dtype"),
        ({"explain": "model.dtype", "diff": "x.json"}, "plan diff=x.json"),
        ({"diff": "x.json", "format": "mermaid"}, "plan diff=x.json"),
        ({"out": "somewhere"}, "deepinfer -m plan"),
    ],
)
def test_unknown_keys_and_words_that_clash(default: Loaded, capsys: Capture, words: dict[str, str], fix: str) -> None:
    spec, choices = default
    with pytest.raises(Refused, match=re.escape(fix)) as refused:
        run(spec, Invocation(verb="plan", choices=choices, **words))  # type: ignore[arg-type]
    assert refused.value.exit_code == 2 and capsys.readouterr().out == ""


def test_a_configuration_that_cannot_be_planned_is_still_explained(capsys: Capture) -> None:
    assert main(["plan", "hardware=h200", "parallel=ep64", "parallel.expert=7", "explain=parallel.expert"]) == 3
    captured = capsys.readouterr()
    assert captured.out.splitlines()[:3] == [
        "parallel.expert = 7",
        "  asked     7 (command line: parallel.expert=7)",
        "  replaced  64 (conf/parallel/ep64.yaml:5)",
    ]
    assert "64 ranks are not divisible by 7" in captured.err


def test_the_order_of_neighbours() -> None:
    assert other_options("ep8", ["single", "ep64", "ep128", "ep8", "ep2"]) == ["ep64", "ep2", "ep128", "single"]
    assert other_options("single", ["single"]) == []
    assert other_options("mine", ["a", "z"]) == ["z", "a"]
    assert neighbours("scheduler.max_num_seqs", 32) == [64, 16]
    assert neighbours("scheduler.max_num_seqs", 1) == [2]
    assert neighbours("scheduler.async_depth", 0) == [1]
    assert neighbours("sampling.reproducible", False) == [True]
    assert neighbours("sampling.top_p", 1.0) == [0.5]
    assert neighbours("sampling.temperature", 0.0) == [1.0, 0.5]
    assert neighbours("sampling.seed", None) == [1]
    assert neighbours("model.dtype", "auto", "float32") == ["float64", "bfloat16"]
    assert neighbours("cache.num_blocks", "auto", 100) == [200, 50]
    assert neighbours("model.path", "/x") == []
    assert neighbours("parallel.kind", "degrees") == []
    assert neighbours("hardware.op_backends", ("a", "b")) == [("b",)]
    assert neighbours("hardware.memory_bytes.value", 10) == [20, 5]
    assert neighbours("no.such.key", 3) == []


def test_an_auto_of_each_role_is_told_for_each() -> None:
    """As the plan decided it, and varied around what every role can hold."""
    sides = ("parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep8")
    plan = plan_of("hardware=b200", "deploy=disaggregated", "cache=prefix", *sides)
    decided = {decision.key: decision.value for decision in plan.decisions}
    for key in ("cache.memory_bytes", "cache.num_blocks"):
        prefill, decode = (decided[f"{key} of {role}"] for role in ("prefill", "decode"))
        assert prefill != decode
        one, around = decision_of(key, "auto", plan)
        assert one is not None and one.rule
        assert one.value == f"prefill {prefill}, decode {decode}"
        assert around == min(int(prefill), int(decode))


@pytest.fixture(scope="module")
def printed() -> tuple[Plan, ...]:
    """Plans whose texts have every word between them."""
    apart = ("hardware=h200", "deploy=disaggregated", "workload.requests_per_s=100")
    sides = ("parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep64")
    host = ("parallel.engram=host", "workload.tokens_per_day=1e12")
    return plan_of(), plan_of(*apart, *sides), plan_of("hardware=h200", "parallel=ep8", *host)


def test_every_word_of_a_plan_is_explained(printed: tuple[Plan, ...]) -> None:
    known = {*Spec.__struct_fields__, *leaf_keys()}
    for plan in printed:
        parts = all_parts(plan)
        labels = {(label or section).replace(" ", "_") for section, label, _ in rows(plan) if section != "plan"}
        backends = {choice.backend for role in plan.layout.roles for choice in role.ops}
        assert [label for label in labels - known - backends if not parts_called(label, parts)] == []


def test_no_word_is_explained_that_no_plan_prints(printed: tuple[Plan, ...]) -> None:
    said = {f"{section}.{label.replace(' ', '_')}".rstrip(".") for plan in printed for section, label, _ in rows(plan)}
    assert MEANING.keys() - said == set()


def test_what_is_usable_and_why(printed: tuple[Plan, ...]) -> None:
    cpu, apart, _ = printed
    usable = {part.key: part for part in words_of(apart)}["memory.usable"]
    assert usable.value == "129.72 GB of 141 GB" and usable.because.startswith("92% of a device")
    assert {part.key: part for part in words_of(cpu)}["memory.usable"].because.startswith("90% of what is free")


def test_a_plan_without_a_fleet_says_what_would_make_one(capsys: Capture) -> None:
    one = told(capsys, "fleet")
    assert one["value"] == "not in this plan" and "workload.requests_per_s" in one["because"]


@pytest.mark.parametrize(
    ("figure", "terms"),
    [
        ("tokens_per_s_per_user", r"([\d.]+) accepted tokens? ÷ ([\d.]+) ms of a step .* × ([\d.]+) of the time"),
        ("decode_tokens_per_s_per_gpu", r"([\d,]+) sequences × ([\d.]+) accepted tokens? ÷ ([\d.]+) ms of a step"),
        ("prefill_tokens_per_s_per_gpu", r"([\d,.]+) computed tokens ÷ ([\d.]+) ms of a step"),
        (
            "prompt_tokens_per_s_per_gpu",
            r"([\d,.]+) computed tokens/s × ([\d,]+) tokens of a prompt ÷ ([\d,.]+) of them",
        ),
    ],
)
def test_figures_can_be_reckoned_from_their_terms(printed: tuple[Plan, ...], figure: str, terms: str) -> None:
    plan = printed[2]
    part = parts_of(plan)[f"cost.{figure}"]
    found = re.search(terms, part.because)
    assert found, part.because
    one, two, *three = (float(number.replace(",", "")) for number in found.groups())
    reckoned = {
        "tokens_per_s_per_user": lambda: one / two * 1e3 * three[0],
        "decode_tokens_per_s_per_gpu": lambda: one * two / three[0] * 1e3,
        "prefill_tokens_per_s_per_gpu": lambda: one / two * 1e3,
        "prompt_tokens_per_s_per_gpu": lambda: one * two / three[0],
    }[figure]()
    assert reckoned == pytest.approx(plan.cost.figure(figure).value, rel=5e-3)


def test_a_figure_is_one_row_with_its_source(capsys: Capture) -> None:
    one = told(capsys, "cost.system_share", *LITERAL)
    assert one["key"] == "cost.system_share.value" and "SGLang" in one["source"] and "2026" in one["source"]
    assert told(capsys, "cost.system_share.source", *LITERAL)["value"] in one["source"]


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("gpu_memory_utilization", "plan explain=cache.memory_bytes"),
        ("tensor_parallel_size", "plan explain=parallel"),
        ("enable_prefix_caching", "plan explain=cache"),
        ("max_running_requests", "plan explain=scheduler.max_num_seqs"),
        ("tokens_per_s_per_usr", "plan explain=tokens_per_s_per_user"),
        ("headrom", "plan explain=headroom"),
    ],
)
def test_words_of_other_engines_and_slips(printed: tuple[Plan, ...], default: Loaded, word: str, fix: str) -> None:
    spec, choices = default
    settled = Settled(plan=printed[0], machine=probe(spec).machine)
    with pytest.raises(Refused) as refused:
        explain(word, spec, Invocation(verb="plan", choices=choices), settled)
    assert refused.value.problems[0].fix == fix


def test_the_last_name_of_a_key_is_enough(capsys: Capture) -> None:
    assert told(capsys, "max_num_seqs")["key"] == "scheduler.max_num_seqs"


def test_explaining_needs_no_plan(default: Loaded) -> None:
    spec, choices = default
    invocation = Invocation(verb="plan", overrides=("parallel=single",), choices=choices)
    (one,) = explain("parallel", spec, invocation)
    assert (one.value, one.origin, one.tried) == ("single", "command line: parallel=single", ())


@pytest.mark.parametrize("key", [key for key in leaf_keys() if ANY not in key])
@pytest.mark.sample(3)
def test_every_key_is_explained(default: Loaded, key: str) -> None:
    """With its place; and what is tried either plans or says why not."""
    spec, choices = default
    facts = probe(spec)
    settled = Settled(plan=resolve(spec, facts, choices), machine=facts.machine)
    invocation = Invocation(verb="plan", overrides=("task=plan",), choices=choices)
    try:
        explained = {one.key: one for one in explain(key, spec, invocation, settled)}
    except Refused as refused:
        with pytest.raises(AttributeError):  # a key of options that are not chosen
            attrgetter(key)(spec)
        assert f"explain={key}" in str(refused)
        return
    one = explained.get(key) or explained[f"{key}.value"]  # a figure with its source
    assert re.fullmatch(r"conf/\S+\.yaml:\d+|nobody: .*", one.origin)
    assert bool(one.tried) != bool(one.not_tried)
    assert [bool(tried.refused) for tried in one.tried[:-1]] == [True] * (len(one.tried) - 1)


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        (("explain", "speculation"), "plan explain=speculation"),
        (("explain", "cache", "hardware=cpu"), "plan hardware=cpu explain=cache"),
        (("diff", "old.json"), "plan diff=old.json"),
        (("explain",), "plan explain=…"),
    ],
)
def test_a_word_of_plan_written_like_a_verb(capsys: Capture, typed: tuple[str, ...], fix: str) -> None:
    assert main(list(typed)) == 2
    said = capsys.readouterr().err
    assert said.startswith("deepinfer: 1 problem:") and said.rstrip().endswith(f"type: {fix}")


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("acceptance", "plan executor=simulated explain=executor.acceptance"),
        ("speculation.depth", "plan speculation=dspark explain=speculation.depth"),
        ("snapshot_every", "plan cache=prefix explain=cache.snapshot_every"),
    ],
)
def test_a_key_of_another_option_names_it(capsys: Capture, key: str, fix: str) -> None:
    assert main(["plan", f"explain={key}"]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"type: {fix}")
    assert main([*fix.split(), "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["meaning"]


def test_a_key_says_what_it_is_for(capsys: Capture) -> None:
    assert "hides the host's work" in told(capsys, "scheduler.async_depth")["meaning"]
