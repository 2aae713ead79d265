"""Messages and exit codes."""

import pytest

from deepinfer.config.errors import ExitCode, Problem, Refused, listed, nearest, worst_code


def problem(code: ExitCode) -> Problem:
    return Problem(asked="a", found="b", code=code)


@pytest.mark.parametrize(
    ("codes", "worst"),
    [
        ([], 0),
        ([1], 1),
        ([1, 7], 7),
        ([3, 2], 2),
        ([6, 4, 1], 4),
        ([5, 6, 7], 5),
        ([1, 1, 3], 3),
    ],
)
def test_the_lowest_class_wins_and_other_loses(codes: list[int], worst: int) -> None:
    assert worst_code([problem(ExitCode(code)) for code in codes]) == worst


def test_refusal_tells_everything_in_order() -> None:
    refused = Refused(
        [
            Problem(asked="x=1", found="found 1", why="2 is needed", fix="x=2"),
            Problem(asked="y=1", found="found 1"),
        ]
    )
    assert str(refused) == "2 problems:\n  x=1\n    found 1; 2 is needed\n    type: x=2\n  y=1\n    found 1"
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("word", "known", "found"),
    [
        ("ep46", ["ep4", "ep64"], "ep64"),
        ("H200", ["h100", "h200"], "h200"),
        ("dsparc", ["none", "dspark", "dspark_fixed"], "dspark"),
        ("xyz", ["none", "dspark"], None),
        ("slice_seconds", ["slice_contexts", "slice_prompts"], None),
        ("slice_context", ["slice_routing", "slice_contexts"], "slice_contexts"),
        ("warm_blocks", ["num_blocks"], None),
        ("max_seqs", ["max_num_seqs"], "max_num_seqs"),
        ("x", [], None),
    ],
)
def test_nearest(word: str, known: list[str], found: str | None) -> None:
    assert nearest(word, known) == found


def test_listed() -> None:
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "nothing",
        "a",
        "a or b",
        "a, b or c",
    ]
