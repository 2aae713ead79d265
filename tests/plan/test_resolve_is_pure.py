"""`resolve` looks nothing up: with the facts at hand it opens no file, lists no folder and starts no process.

That it asks which of deepinfer's own modules are there yet is no look at the machine: they are part of the version.
"""

import builtins
import io
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deepinfer.config.compose import load_with_choices
from deepinfer.config.facts import grounds, probe
from deepinfer.config.specs import Spec
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import PlanErrors

CEILINGS = Path(__file__).parents[2] / "benchmarks" / "results" / "ceilings.jsonl"
DOORS = (
    (builtins, "open"),
    (io, "open"),
    (os, "open"),
    (os, "listdir"),
    (os, "scandir"),
    (subprocess, "Popen"),
)


@contextmanager
def closed_doors() -> Iterator[None]:
    """Whoever looks something up fails. (Imports have doors of their own.)"""

    def shut(*args: object, **keywords: object) -> None:
        raise AssertionError(f"looked up: {args}")

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in DOORS:
            patch.setattr(owner, name, shut)
        yield


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("hardware=h200", "parallel=ep8", "cost=calibrated", "workload.tokens_per_day=1.0e12"),
        ("hardware=h200", "parallel=ep8", "cost=measured", f"cost.path={CEILINGS}"),
        ("hardware=auto", "model=v41_tiny", "cost=roofline"),
        ("cluster=gb300_pd64",),
    ],
    ids=["default", "calibrated", "measured", "auto", "site"],
)
def test_resolve_opens_nothing(overrides: tuple[str, ...]) -> None:
    spec, choices = load_with_choices(*overrides)
    facts = probe(spec)
    with closed_doors():
        plan = resolve(spec, facts, choices)
    assert plan.layout.num_ranks


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (("cost=measured",), "cost.path"),
        (("cost=measured", "cost.path=/nowhere/ceilings.jsonl"), "No such file"),
        (("cost=aiconfigurator", "cost.system=h20"), "h20|aiconfigurator-core .*not installed"),
    ],
)
def test_what_a_cost_lacks_joins_all_other_problems(
    spec_of: Callable[..., Spec], cost: tuple[str, ...], said: str
) -> None:
    spec = spec_of("hardware=h200", "parallel=ep8", "workload.output_share=0.5", *cost)
    facts = probe(spec)
    with closed_doors(), pytest.raises(PlanErrors, match=said) as caught:
        resolve(spec, facts)
    assert len(caught.value.problems) == 2 and "workload.output_share=0.5" in str(caught.value)


def test_specs_of_equal_grounds_have_equal_facts(spec_of: Callable[..., Spec]) -> None:
    """What a search may keep between points: anything that `probe` reads is among the grounds."""
    base = ("hardware=h200", "parallel=ep8")
    measured = (*base, "cost=measured", f"cost.path={CEILINGS}")
    plain, other, lines = (spec_of(*words) for words in (base, (*base, "scheduler.max_num_seqs=3"), measured))
    assert grounds(plain) == grounds(other) != grounds(lines)
    assert probe(plain).cost == probe(other).cost != probe(lines).cost
    split = spec_of(*base, "deploy=disaggregated")
    assert grounds(split)[:2] == grounds(plain)[:2] and len(grounds(split)) == len(grounds(plain)) + 2
