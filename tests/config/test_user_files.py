"""The user's own folder: files that cannot be read, values that they leave open, and folders with odd names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.compose import load
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.own_nodes import MAX_DEPTH

WriteConf = Callable[[dict[str, str]], str]
GLOBAL = "# @package _global_\n"


def refuse(folder: str, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refused:
        load(*overrides, config_dir=folder)
    assert refused.value.exit_code == ExitCode.CONFIG
    return refused.value.problems


def test_defaults_that_lead_in_a_circle(config_dir: WriteConf) -> None:
    files = {
        "sampling/mine": "defaults: [mine]\n",
        "workload/one": "defaults: [two]\n",
        "workload/two": "defaults: [one]\n",
    }
    problems = refuse(config_dir(files), "sampling=mine", "workload=one", "parallel=ep46")
    assert {problem.asked for problem in problems} == {"sampling=mine", "workload=one", "parallel=ep46"}
    circles = [problem for problem in problems if "leads back to the file" in problem.found]
    assert len(circles) == 2


@pytest.mark.parametrize("depth", [300, 3000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_nesting_without_end(config_dir: WriteConf, depth: int, opening: str, closing: str) -> None:
    folder = config_dir({"sampling/mine": f"stop: {opening * depth}1{closing * depth}\n"})
    (problem,) = refuse(folder, "sampling=mine")
    assert problem.asked == "sampling=mine"
    assert problem.found == f"{folder}/sampling/mine.yaml is nested too deeply"


def test_the_depth_that_is_called_too_deep_is_deeper_than_ours(config_dir: WriteConf) -> None:
    """A file of just that depth composes, so the message never names a file that is not to blame."""
    depth = MAX_DEPTH - 2
    text = f"defaults: [default, _self_]\nstop: {'[' * depth}{']' * depth}\n"
    (problem,) = refuse(config_dir({"sampling/mine": text}), "sampling=mine")
    assert problem.asked.startswith("sampling.stop[0]=")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"kind: none\n# gr\xfc\xdfe\n", "line 2: byte 0xfc is not UTF-8"),
        (b"\xff\xfek\x00i\x00", "line 1: byte 0xff is not UTF-8"),
        (b"kind: none\nx: \x00\n", "character 14: special characters are not allowed"),
    ],
)
def test_files_that_are_no_text(config_dir: WriteConf, content: bytes, place: str) -> None:
    folder = config_dir({"cluster/mine": "", "cluster/good": "kind: none\n"})
    (Path(folder) / "cluster/mine.yaml").write_bytes(content)
    (problem,) = refuse(folder, "cluster=mine")
    assert (problem.asked, problem.found) == ("cluster=mine", f"{folder}/cluster/mine.yaml, {place}")
    load("cluster=good", config_dir=folder)  # a file that is not used disturbs nobody


def test_every_open_value_is_named_with_its_file(config_dir: WriteConf) -> None:
    """Also where an earlier file gave a value, which Hydra would keep in silence."""
    files = {
        "sampling/mine": "defaults: [default, _self_]\nmax_tokens: ???\nn: ???\nstop: ['???', a]\n"
        "logit_bias: {5: '???'}\n",
        "workload/mine": "defaults: [chat, _self_]\nprompt_tokens: ???\noutput_tokens: 3\ncached_share: ???\n",
        "cluster/mine": GLOBAL + "cluster: {kind: none}\nscheduler:\n  max_num_seqs: ???\nmodel:\n  path: ???\n",
    }
    folder = config_dir(files)
    options = ["sampling=mine", "workload=mine", "cluster=mine"]
    problems = refuse(folder, *options, "sampling.n=2", "model.path=somewhere", "parallel=ep46", "cache.num_blocks=x")
    found = {problem.asked: (problem.why, problem.fix) for problem in problems if "mandatory" in problem.found}
    assert found == {
        "sampling.max_tokens": (f"{folder}/sampling/mine.yaml leaves it open", "sampling.max_tokens=…"),
        "sampling.stop[0]": (f"{folder}/sampling/mine.yaml leaves it open", "sampling.stop=[…]"),
        "sampling.logit_bias.5": (f"{folder}/sampling/mine.yaml leaves it open", "sampling.logit_bias.5=…"),
        "workload.prompt_tokens": (f"{folder}/workload/mine.yaml leaves it open", "workload.prompt_tokens=…"),
        "workload.cached_share": (f"{folder}/workload/mine.yaml leaves it open", "workload.cached_share=…"),
        "scheduler.max_num_seqs": (f"{folder}/cluster/mine.yaml leaves it open", "scheduler.max_num_seqs=…"),
    }
    assert len(problems) == len(found) + 2


def test_open_kinds_groups_and_unknown_keys(config_dir: WriteConf) -> None:
    files = {
        "workload/mine": "kind: ???\nprompt_tokens: ???\n",
        "cluster/mine": GLOBAL + "cluster: {kind: none}\nsampling:\n  foo: ???\n",
    }
    problems = refuse(config_dir(files), "workload=mine", "cluster=mine")
    assert [problem.asked for problem in problems] == ["workload.kind", "workload.prompt_tokens", "sampling.foo=???"]


def test_a_later_file_fills_in_what_an_earlier_one_leaves_open(config_dir: WriteConf) -> None:
    files = {
        "sampling/base": "defaults: [default, _self_]\nmax_tokens: ???\n",
        "sampling/mine": "defaults: [base, _self_]\nmax_tokens: 4\n",
        "sampling/other": "max_tokens: ???\n",  # not chosen
    }
    assert load("sampling=mine", config_dir=config_dir(files)).sampling.max_tokens == 4


def test_values_given_by_interpolation_are_given(config_dir: WriteConf) -> None:
    folder = config_dir({"sampling/mine": "defaults: [default, _self_]\nn: ???\n"})
    assert load("sampling=mine", "sampling.n=${parallel.expert}", config_dir=folder).sampling.n == 1


@pytest.mark.parametrize(
    "name",
    [
        "a b'c=d",
        'q"x',
        "a\\b",
        "a\\'b",
        "tail\\",
        "a${b}c",
        "a{b},[c]",
        "ä,x",
        "a#b",
        "a%20b",
        "x://y",
        "a\nb",
        "a\udcffb",
    ],
)
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "sampling/mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [default, _self_]\nmax_tokens: 7\n")
    assert load("sampling=mine", config_dir=str(tmp_path / name)).sampling.max_tokens == 7
