"""The plan.json that a rank is given: as launch wrote it, or refused in one sentence."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli.main import main
from deepinfer.cli.rank_plan import read_plan
from deepinfer.config.errors import Refused
from deepinfer.plan.digest import seal

EDITED = (  # what no digest of the ranks covers, but the seal does
    ("sampling", "max_tokens"),
    ("task",),
    ("capacity", "tokens"),
    ("model", "config", "hidden_size"),
    ("model", "location"),
    ("layout", "ranks", 0, 2),
)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan.json of a launch of one rank."""
    folder = tmp_path_factory.mktemp("launch")
    assert main(["launch", "model=v41_tiny", "task.run=generate", "sampling.max_tokens=12", f"out={folder}"]) == 0
    return folder / "plan.json"


def edited(written: Path, target: Path, path: list[str | int], value: Any, *, resealed: bool = False) -> Path:
    """plan.json with one value changed; `resealed` with the seal of that, as if launch had written it."""
    data = json.loads(written.read_text("utf-8"))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if resealed:
        data["seal"] = seal(data)
    target.write_text(json.dumps(data))
    return target


def places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every leaf of a plan."""
    if isinstance(data, dict | list) and data:
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(value, (*path, key))
    else:
        yield path, data


def test_any_edit_of_a_plan_is_refused_in_one_sentence(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    leaves = list(places(json.loads((plan_file).read_text("utf-8"))))
    few = leaves if pytestconfig.getoption("--full") else random.Random(1).sample(leaves, 40)
    named = [leaf for leaf in leaves if leaf[0] in EDITED]
    assert len(named) == len(EDITED)
    for path, value in [*few, *named]:
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else "else"
        file = edited(plan_file, tmp_path / "plan.json", list(path), other)
        with pytest.raises(Refused, match=r"edited|made it") as caught:
            read_plan(str(file))
        assert caught.value.exit_code == 3 and str(caught.value).count("\n") == 3, path
    for path in ([], ["model"], ["model", "config"], ["layout", "roles", 0], ["scheduler"]):  # a key of one's own
        file = edited(plan_file, tmp_path / "plan.json", [*path, "mine"], 1)
        with pytest.raises(Refused, match="it was edited"):
            read_plan(str(file))


def test_a_plan_that_launch_did_not_write(plan_file: Path, tmp_path: Path) -> None:
    data = json.loads((plan_file).read_text("utf-8"))
    for content, told in (
        ({key: value for key, value in data.items() if key != "seal"}, "it has no seal"),
        (data | {"seal": None}, "it was edited"),
        (data | {"deepinfer": 7}, "no version"),
        ({}, "no version"),
    ):
        (tmp_path / "plan.json").write_text(json.dumps(content))
        with pytest.raises(Refused, match=told):
            read_plan(str(tmp_path / "plan.json"))
    (tmp_path / "plan.json").write_text("[" * 100_000)
    with pytest.raises(Refused, match="no plan"):
        read_plan(str(tmp_path / "plan.json"))


def test_layout_of_the_file_is_nobodys_edit(plan_file: Path, tmp_path: Path) -> None:
    data = json.loads((plan_file).read_text("utf-8"))
    (tmp_path / "plan.json").write_text(json.dumps(dict(reversed(data.items()))))
    assert read_plan(str(tmp_path / "plan.json")) == read_plan(str(plan_file))


@pytest.mark.parametrize(
    ("path", "value", "code", "told"),
    [
        (["scheduler", "max_num_seqs"], 3, 3, "a plan is not edited"),
        (["model", "config", "hidden_size"], 384, 3, "rank digest"),
        (["numerics", "threads"], 7, 3, "numerics digest"),
        (["deepinfer"], "0.0.1", 3, "deepinfer 0.0.1 made it"),
        (["layout"], {}, 3, "it holds no plan"),
        (["model", "weights_digest"], "0" * 16, 3, "rank digest"),
        (["task"], "tune", 3, "ranks do serve or generate"),
        (["task"], "serve", 3, "serving settings"),
    ],
)
def test_a_plan_that_contradicts_itself(
    plan_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: list[str],
    value: Any,
    code: int,
    told: str,
) -> None:
    file = edited(plan_file, tmp_path / "plan.json", path, value, resealed=True)
    assert main(["rank", f"plan={file}", "role=all", "replica=0"]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"), [(None, "cannot be read"), ("", "no plan"), ("[1]", "no plan"), ("\xff", "no plan")]
)
def test_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, told: str) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_text(content, encoding="latin-1")
    assert main(["rank", f"plan={file}", "role=all", "replica=0"]) in (2, 3)
    assert told in capsys.readouterr().err
