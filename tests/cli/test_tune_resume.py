"""A search goes on after kills, full disks and lost files, and says what it cannot use."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from deepinfer.cli.main import main
from deepinfer.cli.points_file import FILE
from deepinfer.cli.tune_journal import JOURNAL, mend
from deepinfer.cli.tune_recipe import FIGURES, as_typed, refuse_objectives
from deepinfer.cli.tune_trial import Planner
from deepinfer.config.argv import Invocation
from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.config.sweeps import Search

if find_spec("optuna") is None:
    pytest.skip("needs optuna", allow_module_level=True)

FOUR = (
    "tune",
    "sweep=speculation",
    "hardware=h200",
    "parallel=ep8",
    "sweep.choices={speculation: [none, dspark], scheduler.max_num_seqs: [8, 16]}",
)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    assert main([*FOUR, f"out={folder}"]) == 0
    return folder


@pytest.fixture
def folder(searched: Path, tmp_path: Path) -> Path:
    for name in (JOURNAL, FILE):
        (tmp_path / name).write_bytes((searched / name).read_bytes())
    return tmp_path


def numbers(folder: Path) -> list[int]:
    return sorted(json.loads(line)["number"] for line in (folder / FILE).read_text().splitlines())


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    tried: list[Any] = []
    evaluate = Planner.__call__

    def counted(self: Planner, *asked: Any) -> Any:
        tried.append(asked[2])
        return evaluate(self, *asked)

    monkeypatch.setattr(Planner, "__call__", counted)
    return tried


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_journal_cut_anywhere_goes_on(folder: Path, planned: list[Any], cut: int) -> None:
    journal = folder / JOURNAL
    journal.write_bytes(journal.read_bytes()[:-cut])
    (folder / f"{JOURNAL}.lock").symlink_to(journal)  # of a process that was killed
    assert main([*FOUR, f"out={folder}"]) == 0
    assert planned == [] and numbers(folder) == [0, 1, 2, 3]
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_every_beginning_of_a_journal_can_be_mended(folder: Path, sample_seed: int) -> None:
    journal = folder / JOURNAL
    data = journal.read_bytes()
    for size in range(sample_seed % 97, len(data), 97):
        journal.write_bytes(data[:size])
        mend(folder)
        left = journal.read_bytes()
        assert data.startswith(left) and (not left or left.endswith(b"\n")) and data.find(b"\n", len(left)) >= size - 1


def test_garbage_is_told_and_points_are_kept(
    folder: Path, planned: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = folder / JOURNAL
    whole = journal.read_bytes()
    for garbage in (b"\0\0\0\0\n", b"[1]\n", b'{"a": 1}\n'):
        journal.write_bytes(whole[: whole.index(b"\n") + 1] + garbage + whole)
        assert main([*FOUR, f"out={folder}"]) == 1
        told = capsys.readouterr().err
        assert f"{journal}\n    line 2 is no entry of a search" in told and f"type: rm {journal}" in told
    journal.unlink()
    assert main([*FOUR, f"out={folder}"]) == 0
    assert planned == [] and numbers(folder) == [0, 1, 2, 3]


def test_a_lost_point_is_tried_again(folder: Path, planned: list[Any]) -> None:
    lines = (folder / FILE).read_bytes().splitlines(keepends=True)
    (folder / FILE).write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    assert main([*FOUR, f"out={folder}"]) == 0
    assert len(planned) == 1 and numbers_of_whole_lines(folder) == 4


def numbers_of_whole_lines(folder: Path) -> int:
    return sum(line.endswith(b"}") for line in (folder / FILE).read_bytes().splitlines())


def test_a_full_disk_names_the_journal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / FILE).unlink()
    (folder / FILE).symlink_to("/dev/full")
    assert main([*FOUR, f"out={folder}"]) == 1
    told = capsys.readouterr().err
    assert f"{folder / FILE}\n    it cannot be written: No space left on device" in told and "Traceback" not in told


def recipe(*overrides: str) -> tuple[Search, list[str]]:
    search = load("task=tune", "sweep=layout", *overrides).sweep
    assert isinstance(search, Search)
    return as_typed(search, ["sweep=layout", *overrides])


def test_what_is_typed_whole_replaces_the_recipe() -> None:
    search, told = recipe("sweep.objectives={ttft_s: minimize}")
    assert search.objectives == {"ttft_s": "minimize"}
    assert "recipe's tokens_per_s_per_gpu and tokens_per_s_per_user left out" in told[0]
    assert recipe("sweep.objectives.ttft_s=minimize")[0].objectives.keys() > {"ttft_s", "tokens_per_s_per_gpu"}
    assert len(recipe("+sweep.objectives={ttft_s: minimize}")[0].objectives) == 3
    search, told = recipe("sweep.choices={sampling.top_k: [1, 2]}", "sweep.choices.parallel=[ep8]")
    assert search.choices == {"sampling.top_k": (1, 2), "parallel": ("ep8",)} and len(told) == 1
    assert recipe("sweep.choices={}")[0].choices == {}
    assert recipe("sweep.choices.parallel=[ep8]") == (
        load("task=tune", "sweep=layout", "sweep.choices.parallel=[ep8]").sweep,
        [],
    )


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("sweep.choices={}", "nothing varies"),
        ("sweep.objectives={}", "nothing to search for"),
        ("sweep.objectives={ttft: minimize}", "sweep.objectives={ttft_s: minimize}"),
    ],
)
def test_refused_before_the_first_trial(
    tmp_path: Path, planned: list[Any], typed: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "never"
    assert main(["tune", "sweep=layout", "hardware=h200", typed, f"out={out}"]) == 2
    assert words in capsys.readouterr().err and planned == [] and not out.exists()


def test_objectives_are_the_figures_that_points_have() -> None:
    point = Planner(Invocation(verb="tune", overrides=("hardware=h200", "parallel=ep8")))(0, "", {})
    assert {*(figure.name for figure in point.figures), *point.facts} == set(FIGURES["plan"])
    search, _ = recipe()
    refuse_objectives(structs.replace(search, objectives=dict.fromkeys(FIGURES["plan"], "minimize")))
    with pytest.raises(Refused, match="memory_bytes"):
        refuse_objectives(structs.replace(search, objectives={"memory": "minimize"}))


def test_time_that_is_over_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FOUR, "sweep.stop_after_s=1e-9", f"out={tmp_path}"]) == 0
    assert "sweep.stop_after_s=1e-09 ended the search; 4 points of 4 were not tried" in capsys.readouterr().err


def test_old_options_of_the_best_points_go(folder: Path) -> None:
    (folder / "best").mkdir()
    old = folder / "best" / "trial_99.yaml"
    old.write_text("sampling: {}\n")
    assert main([*FOUR, f"out={folder}"]) == 0
    names = [path.name for path in (folder / "best").iterdir()]
    assert names and old.name not in names


def test_edited_files_make_another_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine" / "sampling" / "mine.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("top_k: 3\n")
    command = [*FOUR, "--config-dir", str(tmp_path / "mine"), "sweep.stop_after_s=1e-9", f"out={tmp_path / 'out'}"]
    assert main(command) == 0
    mine.write_text("top_k: 4\n")
    capsys.readouterr()
    assert main(command) == 2
    assert "the folder holds a search that differs in option files" in capsys.readouterr().err
