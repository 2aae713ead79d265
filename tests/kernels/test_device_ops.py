"""Kernels are interchangeable with their twins: the same arguments by the same names, in the same order."""

import inspect

import pytest

from deepinfer.ops.device import NAMES, DeviceOps, twins
from deepinfer.ops.hopper import hopper


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_takes_what_its_twin_takes(name: str) -> None:
    ours, twin = _parameters(hopper(), name), _parameters(twins(), name)
    if name.startswith("prepare_"):
        assert len(_required(ours)) == 1, "weights alone"
        return
    assert list(twin)[: len(_required(twin))] == list(ours)[: len(_required(twin))]
    assert set(ours) <= set(twin)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_says_what_it_computes(name: str) -> None:
    if not name.startswith(("prepare_", "markov_work")):
        assert inspect.getdoc(getattr(twins(), name)), f"{name} has no docstring"


def _parameters(ops: DeviceOps, name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(ops, name)).parameters)


def _required(parameters: dict[str, inspect.Parameter]) -> list[str]:
    return [name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
