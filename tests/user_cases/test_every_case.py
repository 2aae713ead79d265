"""Each case has its test, named after it, or waits for what it is about, and both are counted."""

import re
from pathlib import Path

from msgspec import Struct

HERE = Path(__file__).parent
FILES = {
    "test_config_cases.py": [f"c{number:02}" for number in range(1, 13)],
    "test_config_values.py": [f"c{number:02}" for number in range(13, 23)],
    "test_parallel_cases.py": [*(f"p{number:02}" for number in range(1, 12)), "n01", "n02", "n03"],
    "test_first_run.py": [f"f{number:02}" for number in range(1, 19)],
    "test_grammar_cases.py": [*(f"g{number:02}" for number in range(1, 9)), "d04"],
}
ELSEWHERE = {  # case → the test that has it
    "c08": ("cli/test_sweep.py", "test_a_failure_is_told_before_the_next_run_starts"),
}


class Waits(Struct, frozen=True):
    """A case that no test can have yet: for what it waits, and the test that this is refused, or said to be missing."""

    feature: str
    refused_by: str


BALANCER = Waits(
    "an expert balancer (EPLB): weights, scales and biases of an expert that moves",
    "test_an_expert_balancer_is_refused_by_name",
)
ROUTER = Waits("a router", "test_a_router_is_refused_by_name")
RANKS = Waits("ranks that meet and exchange (executor=distributed)", "test_ranks_that_would_meet_are_refused_by_name")
WAITING = {
    "p04": BALANCER,
    "p06": Waits(
        "attention data parallelism at run time: the padded batch of an idle rank", "test_ranks_are_planned_and_not_run"
    ),
    "p07": ROUTER,
    "p08": ROUTER,
    "p09": ROUTER,
    "p10": ROUTER,
    "p11": Waits("expert dispatch on devices", "test_ranks_are_planned_and_not_run"),
    "f12": RANKS,
    "f13": RANKS,  # ranks that compare the digests of their plans; `deepinfer rank` does so for a plan in a file
    "f14": RANKS,
    "f15": Waits("kernels that compile at start", "test_kernels_that_would_compile_are_planned_only"),
}
WAITING_PARTS = {  # cases with a test of what a plan can say → what else they are about
    "p05": "an expert balancer: which expert a redundant slot holds",
    "n02": "kernels that are built for a chip, which say at start for which",
    "n03": "kernels other than the reference, whose tests of invariance are in tests/ops",
    "f17": "speculation at run time: acceptance told while it runs",
    "f18": "the prefix cache at run time: hits told while it runs",
}


def names(file: str) -> list[str]:
    return re.findall(r"^def (test_\w+)", (HERE / file).read_text("utf-8"), re.MULTILINE)


def cases_in(file: str) -> set[str]:
    """The cases in the names of a file's tests."""
    return {case for name in names(file) for case in re.findall(r"(?<=_)([cdfgnp]\d\d)(?=_)", name)}


def test_every_case_is_tested_or_waits() -> None:
    cases = [case for of_file in FILES.values() for case in of_file]
    found = set.union(*(cases_in(file) for file in FILES)) | ELSEWHERE.keys()
    whole = found - WAITING_PARTS.keys()
    print(
        f"{len(cases)} cases: {len(whole)} tested, {len(WAITING_PARTS)} as far as a plan goes, {len(WAITING)} waiting"
    )
    assert len(cases) == len(set(cases)) == len(whole) + len(WAITING_PARTS) + len(WAITING)
    assert not found & WAITING.keys(), "a case that waits has no test of its own"
    assert WAITING_PARTS.keys() <= found
    for file, of_file in FILES.items():
        assert cases_in(file) == set(of_file) - ELSEWHERE.keys() - WAITING.keys(), file


def test_what_a_case_waits_for_is_refused_by_a_test() -> None:
    known = {name for file in FILES for name in names(file)}
    assert {waits.refused_by for waits in WAITING.values()} <= known


def test_cases_with_other_tests_are_there() -> None:
    for case, (file, test) in ELSEWHERE.items():
        assert f"\ndef {test}(" in (HERE.parent / file).read_text(), case
