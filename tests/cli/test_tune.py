"""`deepinfer tune`: a search finds what a full search finds, goes on where it stopped, and its points are plans like any."""

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli import sweep_run
from deepinfer.cli.help import options
from deepinfer.cli.main import main
from deepinfer.cli.pareto import frontier
from deepinfer.cli.points_file import FILE, Point
from deepinfer.cli.tune_space import space_of
from deepinfer.cli.tune_study import Searching
from deepinfer.cli.tune_trial import Planner
from deepinfer.config.argv import Invocation
from deepinfer.config.compose import load, load_with_choices
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.config.sweeps import Search
from deepinfer.plan.cost.types import Figure
from deepinfer.plan.resolve import resolve

if find_spec("optuna") is None:
    pytest.skip("needs optuna", allow_module_level=True)

RECIPES = [name for name in options("sweep") if name != "none"]
SMALL = ("sweep=layout", "hardware=h200", "sweep.choices.parallel=[ep2,ep8]", "sweep.choices.speculation=[none,dspark]")
OBJECTIVES = ("per_gpu", "per_user")
Worth = Callable[[dict[str, Any]], tuple[float, float] | None]


def search(**changes: Any) -> Search:
    made = {
        "stop_on_failure": False,
        "over": "plan",
        "choices": {"scheduler.max_num_seqs": (1, 2, 4, 8), "speculation": ("none", "dspark", "ngram")},
        "ranges": {},
        "log_ranges": {},
        "objectives": dict.fromkeys(OBJECTIVES, "maximize"),
        "num_trials": 12,
        "seed": 3,
        "stop_after_s": None,
    }
    return Search(**(made | changes))


class Counted:
    """An evaluator that does sums; points without a worth are refused. It can be interrupted before its n-th point."""

    def __init__(self, worth: Worth, interrupt_at: int | None = None) -> None:
        self.worth, self.interrupt_at = worth, interrupt_at
        self.tried: list[dict[str, Any]] = []

    def __call__(self, number: int, identity: str, values: dict[str, Any]) -> Point:
        if len(self.tried) == self.interrupt_at:
            raise KeyboardInterrupt
        self.tried.append(values)
        shared: dict[str, Any] = {
            "number": number,
            "identity": identity,
            "swept": values,
            "overrides": (),
            "wall_s": 0.0,
        }
        worth = self.worth(values)
        if worth is None:
            return Point(**shared, exit_code=6, refusal="too large")
        figures = [Figure(name=name, value=value, unit="", label="roofline") for name, value in zip(OBJECTIVES, worth)]
        return Point(**shared, exit_code=0, figures=tuple(figures))


def worth(values: dict[str, Any]) -> tuple[float, float] | None:
    seqs, drafts = values["scheduler.max_num_seqs"], values["speculation"]
    return None if drafts == "ngram" and seqs > 4 else (seqs * 10.0, (100.0 + len(drafts)) / seqs)


def searching(folder: Path, recipe: Search, evaluate: Counted, **asked: Any) -> Searching:
    folder.mkdir(exist_ok=True)
    return Searching(folder, recipe, space_of(recipe, ()), evaluate, {"choices": "as given", **asked})


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_small_space_is_gone_through_once(tmp_path: Path) -> None:
    counted, told = Counted(worth), []
    found = searching(tmp_path, search(num_trials=500), counted)
    found.run(told.append)
    every = [dict(zip(search().choices, values)) for values in product(*search().choices.values())]
    assert sorted(map(str, counted.tried)) == sorted(map(str, every))
    assert (found.total, found.number_done, len(told)) == (12, 12, 12)
    refused = [trial for trial in found.study.trials if trial.state.name == "FAIL"]
    assert [trial.user_attrs["refusal"] for trial in refused] == ["exit code 6: too large"]
    assert refused[0].params == {"scheduler.max_num_seqs": 8, "speculation": "ngram"}


def test_a_point_is_tried_once_however_often_it_is_drawn(tmp_path: Path) -> None:
    counted, told = Counted(worth), []
    found = searching(tmp_path, search(num_trials=11), counted)
    found.run(told.append)
    assert len(counted.tried) == len({str(values) for values in counted.tried}) == len(told) == found.number_done == 11
    assert len(found.study.trials) > 11  # some were drawn again


def test_a_draw_that_brought_nothing_new_is_followed_by_a_random_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[tuple[bool, str]] = []
    draw = Searching._next

    def noted(self: Searching) -> Any:
        again, trial = self._again, draw(self)
        draws.append((again, type(self.study.sampler).__name__))
        return trial

    monkeypatch.setattr(Searching, "_next", noted)
    searching(tmp_path / "drawn", search(num_trials=11), Counted(worth)).run(lambda _: None)
    assert set(draws) == {(False, "TPESampler"), (True, "RandomSampler")}
    draws.clear()
    searching(tmp_path / "whole", search(num_trials=12), Counted(worth)).run(lambda _: None)
    assert draws == [(False, "RandomSampler")] * 12


def wide() -> Search:
    return search(
        choices={},
        log_ranges={"scheduler.max_num_seqs": (1, 512)},
        ranges={"sampling.top_p": (0.1, 0.9)},
        num_trials=24,
    )


def wide_worth(values: dict[str, Any]) -> tuple[float, float] | None:
    seqs, share = values["scheduler.max_num_seqs"], values["sampling.top_p"]
    return None if share < 0.15 else (seqs * share, 100.0 / seqs)


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = Counted(wide_worth)
    searching(tmp_path / "whole", wide(), whole).run(lambda _: None)
    first, second, third = Counted(wide_worth, interrupt_at=9), Counted(wide_worth), Counted(wide_worth)
    with pytest.raises(KeyboardInterrupt):
        searching(tmp_path / "parts", wide(), first).run(lambda _: None)
    assert len(lines_of(tmp_path / "parts")) == 9
    rest = searching(tmp_path / "parts", wide(), second)
    assert rest.number_at_start == 9
    rest.run(lambda _: None)
    assert first.tried + second.tried == whole.tried and len(whole.tried) == 24
    assert lines_of(tmp_path / "parts") == lines_of(tmp_path / "whole")
    searching(tmp_path / "parts", wide(), third).run(lambda _: None)
    assert third.tried == []  # it is done
    assert all(isinstance(values["scheduler.max_num_seqs"], int) for values in whole.tried)


def test_the_search_learns(tmp_path: Path) -> None:
    """Of what it draws later more is good than of what it draws first, and other seeds draw other points."""

    def peak(values: dict[str, Any]) -> tuple[float, float]:
        seqs, share = values["scheduler.max_num_seqs"], values["sampling.top_p"]
        near = -abs(share - 0.7) - abs(seqs - 40) / 512
        return near, near

    counted, other = Counted(peak), Counted(peak)
    recipe = wide()
    searching(tmp_path / "a", search(**{**vars_of(recipe), "num_trials": 40}), counted).run(lambda _: None)
    near = [peak(values)[0] for values in counted.tried]
    assert sum(near[-15:]) / 15 > sum(near[:10]) / 10
    searching(tmp_path / "b", search(**{**vars_of(recipe), "num_trials": 2, "seed": 4}), other).run(lambda _: None)
    assert other.tried != counted.tried[:2]


def vars_of(recipe: Search) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in recipe.__struct_fields__}


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    searching(tmp_path, search(num_trials=2), Counted(worth), seed=3).run(lambda _: None)
    searching(tmp_path, search(num_trials=3), Counted(worth), seed=3).run(lambda _: None)  # a longer one may go on
    with pytest.raises(Refused, match="differs in seed and option files") as refused:
        searching(tmp_path, search(), Counted(worth), seed=4, **{"option files": "x"})
    assert refused.value.problems[0].fix == "out=…"


def test_an_objective_that_no_point_has(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="per_gpu or per_user"):
        searching(tmp_path, search(objectives={"per_gup": "maximize"}), Counted(worth)).run(lambda _: None)


def test_time_ends_a_search(tmp_path: Path) -> None:
    counted = Counted(worth)
    searching(tmp_path, search(stop_after_s=1e-9), counted).run(lambda _: None)
    assert counted.tried == []


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_make_sense(name: str) -> None:
    spec = load("task=tune", f"sweep={name}")
    assert isinstance(spec.sweep, Search)
    space = space_of(spec.sweep, ())
    assert (space.size or 10**9) >= 4 and spec.sweep.num_trials >= 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choices": {}}, "nothing varies"),
        ({"objectives": {}}, "nothing to search for"),
        ({"choices": {"parallel": ("ep8", "ep9")}}, "sweep.choices.parallel: ep9"),
        ({"choices": {"scheduler.max_num_seq": (1, 2)}}, "scheduler.max_num_seqs"),
        ({"choices": {"scheduler.max_num_seqs": (1, 0)}}, "sweep: scheduler.max_num_seqs=0"),
        ({"choices": {"scheduler.max_num_seqs": ()}}, "no value to choose from"),
        ({"choices": {"speculation": ("none", "none")}}, "listed twice"),
        ({"choices": {"sampling.stop": (["a"], ["b"])}}, "a list or a mapping"),
        ({"choices": {"task": ("bench", "plan")}}, "cannot change itself"),
        ({"ranges": {"scheduler.max_num_seqs": (1, 9)}}, "it is listed twice"),
        ({"ranges": {"sampling.top_p": (0.9, 0.1)}}, "no such range"),
        ({"ranges": {"sampling.top_p": (0.1, 7.0)}}, "sampling.top_p=7.0"),
        ({"ranges": {"sampling.top_p": (0.1,)}}, "found 1 numbers"),
        ({"ranges": {"sampling.top_pp": (0.1, 0.2)}}, "no such key"),
        ({"ranges": {"model.dtype": (1, 2)}}, "takes no numbers"),
        ({"log_ranges": {"sampling.top_p": (0.0, 1.0)}}, "no such range"),
    ],
)
def test_recipes_that_make_no_sense(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match="problem") as refused:
        space_of(search(**changes), ())
    assert words in str(refused.value)


def test_what_is_typed_cannot_be_searched_too() -> None:
    with pytest.raises(Refused, match="the recipe varies speculation"):
        space_of(search(), ("hardware=h200", "speculation=none"))


def test_a_point_planned_here_is_the_plan_that_hydra_makes(sample_seed: int) -> None:
    planner = Planner(Invocation(verb="tune", overrides=("hardware=h200", "workload.prompt_tokens=64k")))
    for values in (
        {"parallel": "ep8", "speculation": "dspark", "scheduler.max_num_seqs": 7 + sample_seed % 90},
        {"speculation": "none", "scheduler.max_num_batched_tokens": 4096, "parallel": "ep4", "sampling.top_p": 0.5},
        {"parallel": "ep8", "speculation": "dspark", "speculation.depth": 2, "cache.memory_bytes": "20GB"},
    ):
        typed = [f"{name}={value}" for name, value in values.items()]
        spec, choices = load_with_choices("hardware=h200", "workload.prompt_tokens=64k", *typed)
        assert planner.plan(values) == resolve(spec, probe(spec), choices)
    point = planner(1, "x", {"parallel": "single"})
    assert (point.exit_code, point.figures) == (6, ()) and "would hold" in point.refusal
    assert planner(2, "y", {"speculation": "none", "speculation.depth": 3}).exit_code == 2


def test_the_command_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = [*SMALL, "+sweep.choices={scheduler.max_num_batched_tokens:[2048]}", f"out={tmp_path}"]
    assert main(["tune", *typed]) == 0
    told = capsys.readouterr()
    rows = lines_of(tmp_path)
    assert len(rows) == 2 * 2 * 10 and "40 points, 40 to try" in told.err
    refused = [row["exit_code"] for row in rows if row["exit_code"]]
    assert f"{len(refused)} of 40 points cannot be planned or run" in told.err
    assert f"{refused.count(6)} with exit code 6" in told.err and 0 < len(refused) < 40
    well = [row for row in rows if not row["exit_code"]]
    worths = [
        tuple({f["name"]: f["value"] for f in row["figures"]}[name] for name in tune_objectives()) for row in well
    ]
    best = {worths[index] for index in frontier(worths, (1, 1))}
    typed_lines = [line.split() for line in told.out.splitlines() if line.startswith("  deepinfer plan hardware=h200 ")]
    assert len(typed_lines) == len(best) and " beaten by none of 40, equal ones counted once" in told.out
    assert main([*typed_lines[0][1:], "format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    headline = {figure["name"]: figure["value"] for figure in plan["cost"]["headline"]}
    assert tuple(headline[name] for name in tune_objectives()) == max(best)
    name = told.out.splitlines()[-1].split("+best=")[1]
    assert main(["plan", "--config-dir", f"{tmp_path}", f"+best={name}", "format=json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["rank_digest"], again["cost"]["headline"]) == (plan["rank_digest"], plan["cost"]["headline"])


def tune_objectives() -> tuple[str, str]:
    return "tokens_per_s_per_gpu", "tokens_per_s_per_user"


def test_ctrl_c_keeps_what_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "sweep=speculation", "sweep.num_trials=4", f"out={tmp_path}"]
    evaluate, calls = Planner.__call__, []

    def interrupted(self: Planner, *point: Any) -> Point:
        calls.append(point)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(self, *point)

    monkeypatch.setattr(Planner, "__call__", interrupted)
    assert main(command) == 130
    told = capsys.readouterr()
    assert f"2 of 4 points are kept; the same command with out={tmp_path} goes on" in told.err
    assert main(command) == 0
    assert "4 to try, 2 of them by earlier runs" in capsys.readouterr().err
    assert len(lines_of(tmp_path)) == 4 and calls[2][2] == calls[3][2]  # the point that was cut off is tried first


def test_measured_points_are_runs_of_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []

    class Bench:
        stdin = None

        def __init__(self, command: list[str], *, stdout: Any, stderr: Any, **_: Any) -> None:
            started.append(command[3:])
            seqs = int(next(word for word in command if "max_num_seqs" in word).partition("=")[2])
            headline = [
                {"name": name, "value": value, "unit": "tokens/s", "label": "measured"}
                for name, value in zip(tune_objectives(), (10.0 * seqs, 9.0 / seqs))
            ]
            stdout.write(json.dumps({"num_ranks": 1, "mean_ttft_ms": 3.0, "headline": headline}).encode())

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(sweep_run, "Popen", Bench)
    command = [
        "tune",
        "sweep=measured",
        "task.num_requests=5",
        "model.path=somewhere",
        "sweep.num_trials=3",
        f"out={tmp_path}",
    ]
    assert main(command) == 0
    assert len(started) == 3
    for words in started:
        assert words[:2] == ["bench", "task.num_requests=5"] and words[-2:] == ["model.path=somewhere", "format=json"]
    assert [row["facts"]["mean_ttft_ms"] for row in lines_of(tmp_path)] == [3.0] * 3
    assert "somewhere" in next((tmp_path / "best").iterdir()).read_text()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ((), 2, "tune sweep=layout"),
        (("sweep=layout", "parallel=ep8"), 2, "the recipe varies parallel"),
        (("sweep=layout", "format=mermaid"), 2, "format=json"),
        (("sweep=layuot",), 2, "sweep=layout"),
        (("sweep=layout", "sweep.objectives.ttft_s=smallest"), 2, "minimize"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], command: tuple[str, ...], code: int, words: str) -> None:
    assert main(["tune", *command]) == code
    assert words in capsys.readouterr().err


def test_without_optuna_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(["tune", "sweep=layout", f"out={tmp_path}"]) == 1
    assert "pip install -e '.[tune]'" in capsys.readouterr().err
