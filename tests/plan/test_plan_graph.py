"""The engine graph: whole, in order, and made of code that is there."""

import importlib
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
import yaml

from deepinfer.plan.catalog import BY_NAME as BACKEND
from deepinfer.plan.graph import AUTO_SETTINGS
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")
EVERYTHING = (
    "hardware=gb300",
    "parallel=ep64",
    "speculation=dspark",
    "replay=compact",
    "cache=prefix",
    "grammar=llguidance",
)


@pytest.mark.parametrize("overrides", [TINY, EVERYTHING], ids=["default", "everything"])
def test_nodes_stand_after_what_they_need(plan_of: PlanOf, overrides: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for node in plan_of(*overrides).graph:
        assert set(node.needs) <= seen, node.name
        assert node.name not in seen
        seen.add(node.name)
    assert {"model", "cache", "executor", "scheduler", "engine"} <= seen


def test_every_part_of_the_default_engine_exists(plan_of: PlanOf) -> None:
    for node in plan_of(*TINY).graph:
        if node.implementation:
            module, _, attribute = node.implementation.partition(":")
            assert hasattr(importlib.import_module(module), attribute), node.implementation


def test_options_bring_their_parts(plan_of: PlanOf) -> None:
    nodes = {node.name: node for node in plan_of(*EVERYTHING).graph}
    assert nodes["drafter"].settings == {"depth": 5, "verify": "auto", "back_off": True, "cost_curve": "measured"}
    assert nodes["verifier"].implementation.endswith(":CoupledVerifier")
    assert nodes["verifier"].runner_up == "rejection"
    assert nodes["grammar"].option == "grammar=llguidance"
    assert nodes["replay"].settings["keep_tokens"] == 140
    assert "prefix_index" in nodes["scheduler"].needs and "grammar" in nodes["engine"].needs


@pytest.mark.parametrize(
    ("speculation", "verify", "drafter", "verifier"),
    [
        ("dspark", "coupled", "DeviceDSpark", ""),
        ("dspark_fixed", "rejection", "DeviceDSpark", ""),
        ("ngram", "coupled", "Ngram", "DeviceVerifier"),
        ("ngram", "rejection", "Ngram", "DeviceVerifier"),
    ],
)
def test_an_h200_has_parts_of_its_own(
    plan_of: PlanOf, speculation: str, verify: str, drafter: str, verifier: str
) -> None:
    """The parts that deepinfer/engine/device_assembly.py makes."""
    words = ("hardware=h200", f"speculation={speculation}", f"speculation.verify={verify}")
    nodes = {node.name: node for node in plan_of(*TINY, *words).graph}
    names = {name: node.implementation.partition(":")[2] for name, node in nodes.items()}
    assert (names["drafter"], names["verifier"], names["sampler"]) == (drafter, verifier, "DeviceSampler")
    for node in nodes.values():
        assert not node.implementation or _imports(node.implementation), node.implementation
    assert bool(nodes["verifier"].reason) == (not verifier)


def test_an_executor_chosen_by_auto_has_the_settings_of_its_option(plan_of: PlanOf) -> None:
    folder = Path(str(resources.files("deepinfer.conf") / "executor"))
    for kind, settings in AUTO_SETTINGS.items():
        data = yaml.safe_load((folder / f"{kind}.yaml").read_text())
        assert settings == {key: value for key, value in data.items() if key != "kind"}
    (node,) = [node for node in plan_of("hardware=virtual", *TINY).graph if node.name == "executor"]
    assert node.settings == {"step_time_s": 0.001, "acceptance": 0.8}


def test_parts_without_code_are_marked(plan_of: PlanOf) -> None:
    assert not any(node.planned for node in plan_of(*TINY).graph)
    plan = plan_of(*EVERYTHING)
    for node in plan.graph:
        backend = BACKEND.get(node.name.removeprefix("ops."))  # kernels of one kind of chip do not run on this one
        taken = backend is None or (backend.in_this_version and not backend.architectures)
        there = not node.implementation or _imports(node.implementation)
        assert node.planned == (not there or not taken), node.implementation
    assert any(node.planned for node in plan.graph)


def _imports(implementation: str) -> bool:
    try:
        return bool(importlib.import_module(implementation.partition(":")[0]))
    except ModuleNotFoundError:
        return False
