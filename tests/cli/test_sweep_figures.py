"""The frontier, the table and the picture of a sweep."""

import random
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec import structs

import deepinfer
from deepinfer.cli.extras import how_to_install
from deepinfer.cli.pareto import MOST_CURVES, Dot, draw, frontier
from deepinfer.cli.points_file import Point, first_sentence
from deepinfer.cli.sweep_table import number, pareto_best, table
from deepinfer.cli.sweep_told import counted, tell_picture, title_of
from deepinfer.config.compose import load
from deepinfer.plan.cost.types import Figure


def point(place: int, label: str = "roofline", **figures: float) -> Point:
    made = tuple(Figure(name=name, value=value, unit="tokens/s", label=label) for name, value in figures.items())
    swept = {"seqs": str(place)}
    return Point(number=place, identity=str(place), swept=swept, overrides=(), exit_code=0, wall_s=0.0, figures=made)


def test_the_frontier_holds_what_no_other_beats() -> None:
    rng = random.Random(5)
    rows = [(rng.randrange(9), rng.randrange(9), rng.randrange(9)) for _ in range(60)]
    signs = (1, -1, 1)
    best = set(frontier(rows, signs))
    for index, row in enumerate(rows):
        beaten = False
        for other in rows:
            gains = [sign * (theirs - ours) for sign, ours, theirs in zip(signs, row, other)]
            beaten = beaten or (min(gains) >= 0 and max(gains) > 0)
        assert (index in best) == (not beaten)
    assert 0 < len(best) < len(rows)


def test_what_is_as_good_in_one_and_worse_in_another_is_beaten() -> None:
    assert frontier([(1, 5), (1, 6), (2, 1), (2, 1), (0, 6)], (1, 1)) == [1, 2, 3]
    assert frontier([(1, 5), (1, 6)], (1, -1)) == [0]


def test_points_without_an_objective_or_refused_are_not_compared() -> None:
    points = [point(0, a=1.0, b=5.0), point(1, a=9.0), point(2, a=2.0, b=6.0)]
    assert pareto_best(points, ("a", "b"), (1, 1)) == [2]
    assert pareto_best(points, ("a", "b"), (1, -1)) == [0, 2]


def test_a_label_all_share_stands_above_and_others_beside_the_number() -> None:
    alike = table([point(1, tokens=10.0), point(2, tokens=2000.0)], [1]).splitlines()
    assert [line.split() for line in alike] == [["seqs", "tokens"], ["roofline"], ["1", "10"], ["*", "2", "2,000"]]
    mixed = table([point(1, tokens=10.0), point(2, "measured", tokens=0.125)]).splitlines()
    assert [line.split() for line in mixed] == [["seqs", "tokens"], ["1", "10", "roofline"], ["2", "0.125", "measured"]]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (8.0, "8"), (0.0123456, "0.01235"), (1234.5, "1,234"), (1.5e6, "1,500,000")]
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "deepinfer: 1 problem:\n  parallel=ep3\n    no such option; there are two\n    type: x\n",
            "parallel=ep3: no such option; there are two",
        ),
        ("a warning\ndeepinfer: 3 problems:\n  a=1\n    bad\n  b=2\n    bad\n", "a=1: bad (and 2 more)"),
        ("deepinfer: no space left\n", "no space left"),
        (
            "Traceback …\nKeyError: 'x'\ndeepinfer: this is a fault of deepinfer, not of your input; …\n",
            "KeyError: 'x'",
        ),
        ("", "it said nothing"),
    ],
)
def test_first_sentence(said: str, sentence: str) -> None:
    assert first_sentence(said) == sentence


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_picture_marks_the_frontier(tmp_path: Path) -> None:
    dots = [Dot(per_user=user, per_gpu=gpu, name=f"{user}", label="roofline") for user, gpu in ((1, 9), (5, 5), (2, 2))]
    assert draw(dots, tmp_path / "a.png", "three") and draw(dots[:2], tmp_path / "b.png", "two")
    first, second = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first.startswith(b"\x89PNG") and first != second
    curve = ((9.0, 1.0), (5.0, 6.0), (1.0, 9.0))
    curved = [structs.replace(dots[0], curve=curve), *dots[1:]]
    assert draw(curved, tmp_path / "c.png", "three") and (tmp_path / "c.png").read_bytes() != first
    many = [structs.replace(dots[0], curve=curve, name=f"{number}") for number in range(MOST_CURVES + 1)]
    assert draw(many, tmp_path / "d.png", "many: dots alone")


def test_without_matplotlib_the_table_says_how_to_get_the_picture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    points = [point(1, tokens_per_s_per_gpu=3.0, tokens_per_s_per_user=1.0)]
    assert tell_picture(points, tmp_path, []) == "the picture needs matplotlib: pip install -e '.[plot]'"
    monkeypatch.setattr(deepinfer, "__file__", str(tmp_path / "site-packages" / "deepinfer" / "__init__.py"))
    assert tell_picture(points, tmp_path, []) == "the picture needs matplotlib: pip install 'matplotlib>=3.9'"
    assert how_to_install("tune") == "pip install 'optuna>=5'"
    assert tell_picture([point(2, other=1.0)], tmp_path, []) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_title_names_models_and_sizes() -> None:
    points = [structs.replace(point(number), model="v41_flash") for number in (1, 2)]
    loads = [load("workload.prompt_tokens=1024", "workload.output_tokens=512").workload] * 2
    assert title_of(points, loads) == "v41_flash, 1,024 + 512 tokens"
    two = [*points, structs.replace(point(3), model="v41_tiny")]
    assert title_of(two, []) == "v41_flash and v41_tiny"
    assert (counted(1, "run"), counted(2, "run"), counted(10000, "point")) == ("1 run", "2 runs", "10,000 points")


def test_long_reasons_are_cut_in_the_table_alone() -> None:
    refused = structs.replace(point(1), exit_code=6, refusal="x" * 500)
    assert table([refused]).splitlines()[-1].endswith("x…") and len(table([refused]).splitlines()[-1]) < 120
