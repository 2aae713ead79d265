"""Settings that nothing would read are refused, with what to type."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.errors import ExitCode
from deepinfer.plan.types import Plan, PlanErrors

TINY = ("model=v41_tiny",)
CASES = [
    (("hardware=h200", *TINY), "model.threads=2", "no rank runs on a CPU"),
    (("cache.num_blocks=16", *TINY), "cache.memory_bytes=1048576", "cache.num_blocks=16"),
    (("cache=prefix", "replay.on_hit=exact", *TINY), "cache.snapshot_bytes=1048576", "computes the window keys"),
    (
        ("model=v41_flash", "hardware=h200", "parallel=ep8", "model.weights=dummy"),
        "model.revision=main",
        "makes numbers",
    ),
]


@pytest.mark.parametrize(("base", "unread", "found"), CASES, ids=[unread for _, unread, _ in CASES])
def test_a_setting_that_nothing_reads(
    plan_of: Callable[..., Plan], base: tuple[str, ...], unread: str, found: str
) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*base, unread)
    (problem,) = refused.value.problems
    assert (problem.asked, problem.code) == (unread, ExitCode.PLAN)
    assert found in problem.found
    assert plan_of(*base, unread, problem.fix) == plan_of(*base)


def test_a_folder_has_no_revision(plan_of: Callable[..., Plan]) -> None:
    folder = Path(__file__).parents[2] / "deepinfer" / "assets" / "v41_tiny"
    with pytest.raises(PlanErrors) as refused:
        plan_of("model=auto", f"model.path={folder}", "model.revision=main")
    assert [problem.fix for problem in refused.value.problems] == ["model.revision=null"]


def test_threads_of_the_side_that_has_a_cpu(plan_of: Callable[..., Plan]) -> None:
    mixed = ("deploy=disaggregated", "hardware@deploy.decode.hardware=h200", "model.dtype=float32", *TINY)
    assert plan_of(*mixed, "model.threads=2").numerics.threads == 2


@pytest.mark.parametrize("on_hit", ["exact", "bounded"])
def test_what_follows_a_hit_where_nothing_hits(plan_of: Callable[..., Plan], on_hit: str) -> None:
    """A warning: a grid over caches may hold it."""
    plan = plan_of(*TINY, "cache=paged", f"replay.on_hit={on_hit}")
    (warning,) = [warning for warning in plan.warnings if "on_hit" in warning]
    asked, _, cure = warning.partition("; ")
    assert asked.startswith(f"replay.on_hit={on_hit} does nothing") and "cache=paged" in asked
    cured = plan_of(*TINY, "cache=paged", cure)
    assert not any("on_hit" in warning for warning in cured.warnings)
    used = plan_of(*TINY, "cache=prefix", f"replay.on_hit={on_hit}", "cache.snapshot_bytes=0")
    assert not any("does nothing" in warning for warning in used.warnings)
