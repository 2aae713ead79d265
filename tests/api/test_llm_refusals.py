"""What an LLM refuses before anything is built, and how its overrides are spelled."""

import pytest

import deepinfer
from deepinfer.api import LLM
from deepinfer.config.errors import Refused
from deepinfer.config.overrides import as_override


def test_refusals_are_importable_from_the_top() -> None:
    assert deepinfer.Refused is Refused
    with pytest.raises(deepinfer.Refused, match="type: model=v41_tiny"):
        LLM("v41_tiny")


def test_hardware_that_is_not_here_is_refused_in_the_words_of_the_command_line() -> None:
    with pytest.raises(Refused, match=r"64 × Huawei Ascend 950.*no code for Huawei Ascend 950") as caught:
        LLM("hardware=ascend950", "parallel=ep64")
    (problem,) = caught.value.problems
    assert caught.value.exit_code == 4 and problem.asked == "hardware=ascend950"
    assert problem.fix == "hardware=cpu model=v41_tiny parallel=single"


def test_what_is_not_built_is_refused_as_on_the_command_line() -> None:
    with pytest.raises(ValueError, match="no code to run it; it can be planned") as caught:
        LLM("model=v41_tiny", "deploy=disaggregated")
    assert [problem.asked for problem in caught.value.problems] == ["deploy=disaggregated"]


@pytest.mark.parametrize(
    ("overrides", "found", "fix"),
    [
        (("executor=distributed",), "the layout has 1 rank", "executor=auto"),
        (("parallel=ep2", "executor=local"), "the layout has 2 ranks", "executor=distributed"),
        (("parallel=ep2", "executor=simulated"), "a simulation is of one rank", "parallel=single"),
        (("parallel=ep2", "hardware.node_devices=1"), "stand on 2 nodes", "launcher=torchrun task.run=generate"),
    ],
)
def test_ranks_that_this_process_cannot_start(overrides: tuple[str, ...], found: str, fix: str) -> None:
    with pytest.raises(Refused) as caught:
        LLM("hardware=cpu", "model=v41_tiny", *overrides)
    (problem,) = caught.value.problems
    assert found in problem.found and fix in problem.fix


def test_keywords_are_overrides() -> None:
    assert as_override("model__path", "/a b") == "model.path=/a b"
    assert as_override("sampling__seed", None) == "sampling.seed=null"
    assert as_override("sampling__ignore_eos", True) == "sampling.ignore_eos=true"
    assert as_override("sampling__n", 1) == "sampling.n=1"
