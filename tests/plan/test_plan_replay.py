"""Bounded replay and what follows a prefix hit: which models can be cut, and what a plan says of approximations."""

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Overrides for a model like the tiny one, with some values of its text_config changed."""

    def make(**changes: Any) -> tuple[str, ...]:
        shipped = resources.files("deepinfer") / "assets" / "v41_tiny" / "config.json"
        raw = json.loads(shipped.read_text())
        raw["text_config"] |= changes
        (tmp_path / "config.json").write_text(json.dumps(raw))
        return (f"model.path={tmp_path}", "model.weights=dummy", "speculation=dspark")

    return make


@pytest.mark.parametrize("kind", ["mask", "compact"])
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dspark_target_layer_ids": [2, 3, 4]}, "the drafter reads layers [2, 3, 4]"),
        ({"kv_source_layer_ids": [1, 3, 4]}, "makes compressed keys"),
        (
            {
                "compress_ratios": [0, 2, 2, 2, 2, 2, 0, 0],
                "kv_source_layer_ids": [1, 3],
                "engram_layer_ids": [1],
            },
            "has no layer of ratio 1",
        ),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(
    plan_of: PlanOf, folder: Callable[..., tuple[str, ...]], kind: str, changes: dict[str, Any], found: str
) -> None:
    plan_of(*folder(**changes))
    with pytest.raises(PlanErrors) as refused:
        plan_of(*folder(**changes), f"replay={kind}")
    (problem,) = refused.value.problems
    assert problem.asked == f"replay={kind}" and found in problem.found and problem.fix == "replay=none"


@pytest.mark.parametrize("ids", [[0, 1, 2], [3, 4, 5]])
def test_a_drafter_that_reads_one_side_is_fine(
    plan_of: PlanOf, folder: Callable[..., tuple[str, ...]], ids: list[int]
) -> None:
    assert plan_of(*folder(dspark_target_layer_ids=ids), "replay=compact").numerics.replay == "compact"


@pytest.mark.parametrize("kind", ["none", "mask", "compact"])
def test_every_replay_says_where_window_keys_of_a_hit_come_from(plan_of: PlanOf, kind: str) -> None:
    assert plan_of(*TINY, f"replay={kind}").numerics.replay_on_hit == "snapshot"
    assert plan_of(*TINY, f"replay={kind}", "replay.on_hit=exact").numerics.replay_on_hit == "exact"


def test_approximations_are_named_and_have_digests_of_their_own(plan_of: PlanOf) -> None:
    exact = plan_of(*TINY, "cache=prefix")
    assert not any("approximation" in warning for warning in exact.warnings)
    assert plan_of(*TINY, "cache=prefix", "replay.on_hit=exact").numerics_digest == exact.numerics_digest
    for override in ("replay=mask", "replay=compact", "replay.on_hit=bounded"):
        plan = plan_of(*TINY, "cache=prefix", override)
        (warning,) = [warning for warning in plan.warnings if "approximation" in warning]
        assert warning.startswith(override)
        assert plan.numerics_digest != exact.numerics_digest


def test_without_hits_nothing_after_them_is_approximate(plan_of: PlanOf) -> None:
    plan = plan_of(*TINY, "cache=paged", "replay.on_hit=bounded", "sampling=reproducible")
    assert not any("approximation" in warning for warning in plan.warnings)
