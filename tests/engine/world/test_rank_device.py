"""A rank computes on its own device of its node, or on the only one that its launcher shows it."""

import os

import pytest
import torch

from deepinfer.config.compose import load
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import probe
from deepinfer.engine.world.rank_device import use_device
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import RankPlan


@pytest.fixture(scope="module")
def ranks() -> tuple[RankPlan, ...]:
    spec = load("model=v41_tiny", "hardware=h200", "parallel=ep4")
    return resolve(spec, probe(spec)).layout.ranks


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "")  # so that it is as it was afterwards
    monkeypatch.delenv("NCCL_GRAPH_REGISTER")
    return found


@pytest.mark.parametrize(("shown", "taken"), [(4, [0, 1, 2, 3]), (8, [0, 1, 2, 3]), (1, [0, 0, 0, 0])])
def test_ranks_take_devices_in_order(
    shown: int, taken: list[int], ranks: tuple[RankPlan, ...], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: shown)
    for rank in ranks:
        use_device("cuda", rank)
    assert chosen == taken
    assert (os.environ["NCCL_NVLS_ENABLE"], os.environ["NCCL_GRAPH_REGISTER"]) == ("1", "0"), "what the user says holds"


@pytest.mark.parametrize("shown", [0, 2])
def test_a_device_that_is_not_shown_is_refused(
    shown: int, ranks: tuple[RankPlan, ...], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: shown)
    with pytest.raises(Refused) as refused:
        use_device("cuda", ranks[3])
    (problem,) = refused.value.problems
    assert problem.code is ExitCode.DEVICE and problem.asked == "device 3 of this node" and not chosen


def test_a_processor_needs_no_choice(ranks: tuple[RankPlan, ...], chosen: list[int]) -> None:
    use_device("cpu", ranks[3])
    assert not chosen and "NCCL_GRAPH_REGISTER" not in os.environ
