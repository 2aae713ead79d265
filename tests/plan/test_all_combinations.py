"""Every option of every group beside every option of every other group: a plan, or a refusal with its reason and cure.

How many of each there were is frozen in all_combinations.txt, a line for each two groups. The default run computes a seeded
sample of the lines anew and fails where one has fewer plans, or fewer pairs, than its frozen counts; --full computes all of
them and wants just these counts, so that their total, which is printed, is that of the run.
"""

import shlex
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from itertools import combinations, product
from pathlib import Path

import pytest

from deepinfer.config import argv
from deepinfer.config.compose import read
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.specs import Spec
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
CONF = Path(str(resources.files("deepinfer.conf")))
COUNTS = Path(__file__).with_name("all_combinations.txt")
GROUPS = sorted(set(Spec.__struct_fields__) - {"cluster"})  # clusters are whole combinations, with a test of their own
SCENES = {  # where a pair is tried: its two options replace what stands here
    "tiny": {"model": "v41_tiny"},  # on a laptop's CPU
    "released": {"hardware": "gb300", "parallel": "ep64"},
}
DUMMY = "model.weights=dummy"  # nothing is downloaded or looked for
LINES = [(scene, first, second) for scene in SCENES for first, second in combinations(GROUPS, 2)]
CURED: set[tuple[str, ...]] = set()  # problems whose cure has been tried; each is met in many pairs
UPDATE = "python tests/plan/test_all_combinations.py > tests/plan/all_combinations.txt"


@cache
def options(group: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (CONF / group).glob("*.yaml")))


def overrides_of(scene: str, pair: dict[str, str]) -> list[str]:
    """A pair in its scene, as typed; what only makes sense inside a deployment's sides is left out."""
    return [*(f"{group}={option}" for group, option in (SCENES[scene] | pair).items()), DUMMY]


def pairs(first: str, second: str) -> Iterator[dict[str, str]]:
    for one, other in product(options(first), options(second)):
        yield {first: one, second: other}


@cache
def frozen_counts() -> dict[tuple[str, str, str], tuple[int, int]]:
    rows = [line.split() for line in COUNTS.read_text().splitlines() if not line.startswith("#")]
    return {(scene, first, second): (int(plans), int(refusals)) for scene, first, second, plans, refusals in rows}


@pytest.mark.sample(20)
@pytest.mark.parametrize(("scene", "first", "second"), LINES, ids=["-".join(line) for line in LINES])
def test_two_groups(plan_of: PlanOf, full: bool, scene: str, first: str, second: str) -> None:
    plans, refusals = tried(plan_of, scene, first, second)
    print(f"{scene}: {first} × {second}: {plans} planned, {refusals} refused with a reason and a cure")
    frozen = frozen_counts()[scene, first, second]
    assert plans >= frozen[0] and plans + refusals >= sum(frozen), f"were {frozen}, are {(plans, refusals)}"
    assert not full or frozen == (plans, refusals), f"more than before; type: {UPDATE}"


def tried(plan_of: PlanOf, scene: str, first: str, second: str) -> tuple[int, int]:
    """How many pairs of two groups are planned and how many refused, each refusal with a reason and a cure."""
    plans = refusals = 0
    for pair in pairs(first, second):
        planned = is_planned(plan_of, scene, overrides_of(scene, pair), pair)
        plans, refusals = plans + planned, refusals + (not planned)
    return plans, refusals


def is_planned(plan_of: PlanOf, scene: str, typed: list[str], pair: dict[str, str]) -> bool:
    """Whether some overrides give a plan; where they are refused, each problem has a reason and a cure that works."""
    try:
        plan = plan_of(*typed)
    except Refused as refused:
        assert refused.exit_code in (ExitCode.CONFIG, ExitCode.PLAN, ExitCode.MEMORY), typed
        for problem in refused.problems:
            assert problem.asked and problem.found and problem.fix, (typed, problem)
            if (told := (scene, problem.asked, problem.found, problem.fix)) not in CURED:
                assert is_cured(plan_of, typed, problem), (typed, problem)
                CURED.add(told)
        return False
    assert plan.choices.items() >= pair.items() and plan.graph and plan.ops and plan.memory
    return True


@pytest.mark.sample(4)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("cluster", [name for name in options("cluster") if name != "none"])
def test_a_cluster_and_every_option_of_a_group(plan_of: PlanOf, cluster: str, group: str) -> None:
    """A site's combination with one option of it exchanged on the command line."""
    of_group = [{"cluster": cluster, group: option} for option in options(group)]
    typed = [[f"{key}={option}" for key, option in pair.items()] for pair in of_group]
    planned = [is_planned(plan_of, cluster, [*each, DUMMY], pair) for each, pair in zip(typed, of_group, strict=True)]
    print(f"{cluster}: {group}: {sum(planned)} of {len(planned)} planned")
    assert any(planned)


def is_cured(plan_of: PlanOf, typed: list[str], problem: Problem) -> bool:
    """Whether typing what the message says takes just this problem away (others may stand, or come to light)."""
    try:
        plan_of(*with_fix(typed, problem.fix))
    except Refused as refused:
        return (problem.asked, problem.found) not in [(other.asked, other.found) for other in refused.problems]
    return True


def with_fix(typed: list[str], fix: str) -> list[str]:
    """The overrides with those of a fix in the place of what they replace."""
    new = shlex.split(fix)
    keys = {text.partition("=")[0] for text in new}
    return [*(text for text in typed if text.partition("=")[0] not in keys), *new]


def test_the_frozen_counts_are_of_all_groups() -> None:
    """Every two groups have a line, of as many pairs as there are options today; most of the pairs were planned."""
    assert frozen_counts().keys() == set(LINES), f"type: {UPDATE}"
    for (scene, first, second), (plans, refusals) in frozen_counts().items():
        pairs_now = len(options(first)) * len(options(second))
        assert plans + refusals == pairs_now, f"{scene} {first} × {second} has {pairs_now} pairs; type: {UPDATE}"
    plans, refusals = map(sum, zip(*frozen_counts().values(), strict=True))
    print(f"frozen counts: {plans} pairs planned, {refusals} refused")
    assert plans > 2 * refusals > 0


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", range(120))
def test_pairs_are_composed_as_hydra_does(spec_of: Callable[..., Spec], number: int) -> None:
    """These tests merge option files by themselves; Hydra's outcome is the same."""
    scene, first, second = LINES[number * 3 % len(LINES)]
    of_line = list(pairs(first, second))
    typed = overrides_of(scene, of_line[number % len(of_line)])
    assert read(argv.parse(typed))[0] == spec_of(*typed)


def write_counts() -> None:
    """The file of counts, on stdout."""
    from conftest import FakeMachine, composed

    def plan_of(*overrides: str) -> Plan:
        spec, choices = composed(*overrides)
        return resolve(spec, probe(spec, FakeMachine()), choices)

    print("# scene, two groups, pairs of their options that are planned, pairs that are refused")
    for scene, first, second in LINES:
        print(scene, first, second, *tried(plan_of, scene, first, second))


if __name__ == "__main__":
    write_counts()
