"""`plan diff=FILE`: what changed since a plan was written, by whom; 0 for the same plan and 1 for another, as diff(1)."""

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deepinfer.cli.main import main
from deepinfer.cli.plan_diff import Difference, difference
from deepinfer.config.argv import Invocation
from deepinfer.config.compose import load_with_choices
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.plan.changes import lines, moved_by, notable, shown
from deepinfer.plan.compare import Change, compare
from deepinfer.plan.render import json_text
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

Capture = pytest.CaptureFixture[str]
Made = Callable[..., Plan]
B200 = ("hardware=b200", "parallel=ep8")


@pytest.fixture(scope="module")
def made() -> Made:
    """The plan of some overrides, made once."""
    plans: dict[tuple[str, ...], Plan] = {}

    def make(*overrides: str) -> Plan:
        if overrides not in plans:
            spec, choices = load_with_choices("task=plan", *overrides)
            plans[overrides] = resolve(spec, probe(spec), choices)
        return plans[overrides]

    return make


@pytest.fixture
def written(tmp_path: Path, made: Made) -> Callable[..., Path]:
    """A plan's file as `plan format=json` writes it."""

    def write(*overrides: str) -> Path:
        file = tmp_path / "plan.json"
        file.write_text(json_text(made(*overrides)), "utf-8")
        return file

    return write


def test_the_same_plan(capsys: Capture, written: Callable[..., Path]) -> None:
    file = written(*B200)
    assert main(["plan", *B200, f"diff={file}"]) == 0
    assert capsys.readouterr().out == f"same     {file} is this plan\n"


def test_what_a_command_prints_can_be_compared_with(capsys: Capture, tmp_path: Path) -> None:
    """Also where memory is measured, which is never twice the same."""
    assert main(["plan", "format=json"]) == 0
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out, "utf-8")
    assert main(["plan", f"diff={file}", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(file), "same": True, "changes": [], "origins": {}}


def test_changes_are_named_with_both_sides_and_their_author(
    capsys: Capture, written: Callable[..., Path], made: Made
) -> None:
    now = ("hardware=b200", "parallel=ep64", "scheduler.max_num_seqs=64")
    file, before, after = written(*B200), made(*B200), made(*now)
    assert main(["plan", *now, f"diff={file}", "format=json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is False
    assert told["origins"] == {
        "chosen.parallel": "command line: parallel=ep64",
        "scheduler.max_num_seqs": "command line: scheduler.max_num_seqs=64",
    }
    changes = {f"{each['section']}.{each['key']}": (each.get("before"), each.get("after")) for each in told["changes"]}
    assert changes["chosen.parallel"] == ("ep8", "ep64")
    assert changes["layout.num_ranks"] == (8, 64)
    for name in ("experts", "engram", "state"):
        assert changes[f"memory.{name}"] == tuple(plan.memory[0].item(name).num_bytes for plan in (before, after))
    assert changes["capacity.all_tokens"] == (before.capacity.all_tokens, after.capacity.all_tokens)
    assert changes["scheduler.max_num_seqs"] == (32, 64)
    assert changes["digest.rank"] == (before.rank_digest, after.rank_digest)
    for figure in before.cost.headline:
        other = after.cost.figure(figure.name).value
        assert changes.get(f"cost.{figure.name}", (figure.value, figure.value)) == (figure.value, other)
    untouched = {f"memory.{item.name}" for item in before.memory[0].items} - changes.keys()
    assert all(
        after.memory[0].item(path[7:]).num_bytes == before.memory[0].item(path[7:]).num_bytes for path in untouched
    )


def test_text_of_a_difference(capsys: Capture, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from standard input, too."""
    content = written(*B200).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert main(["plan", *B200, "kernels.ops={attention: reference}", "diff=-"]) == 1
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("diff     standard input → this plan: ")
    sections = [row[:9].strip() for row in rows]
    assert sections == sorted(sections, key=sections.index), "one block a section"
    assert any(row.startswith("ops      attention ") and row.endswith("deepseek → reference") for row in rows)
    assert any(row.startswith("memory   workspace ") and " MB, +" in row for row in rows)
    assert any(row.startswith("warning  + 1 of ") for row in rows)


def test_roles_that_come_and_go(made: Made) -> None:
    """A part that only one plan has is one row, however much it holds; reasons are left to the other rows."""
    sides = ("parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep8")
    apart = made("hardware=b200", "deploy=disaggregated", *sides)
    changes = {change.path: (change.before, change.after) for change in compare(made(*B200), apart)}
    assert changes["layout.all"] == (8, None)
    assert (changes["layout.prefill"], changes["layout.decode"]) == ((None, 4), (None, 8))
    assert changes["memory.decode"] == (None, apart.memory[-1].device_bytes)
    assert not [path for path in changes if path.startswith(("layout.prefill.", "memory.prefill."))]
    assert not [path for path in changes if path.endswith((".rule", ".reason", ".note"))]


def test_every_field_of_a_plan_is_compared(made: Made) -> None:
    """Whatever single value of a plan's data changes, the two plans are not the same."""
    plan = made(*B200)
    data = json.loads(plan.to_json())
    assert compare(plan, Plan.from_json(json.dumps(data))) == ()
    missed = [path for path in _scalars(data) if not compare(plan, _with(data, path))]
    assert missed == []


def _scalars(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of numbers and texts, a few of each long list."""
    if isinstance(value, dict):
        return [found for name, item in value.items() for found in _scalars(item, (*path, name))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value[:2]) for found in _scalars(item, (*path, index))]
    derived = path[0] == "cost" and any(isinstance(name, int) for name in path) and path[1] != "headline"
    repeated = path[0] == "graph" and "settings" in path
    repeated |= path[:3] == ("layout", "roles", 0) and path[3] in ("hardware", "ops", "floors")
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return [path] if numeric and not derived and not repeated else []


def _with(data: dict[str, Any], path: tuple[Any, ...]) -> Plan:
    """The plan whose number at `path` is one more, or half of a share, or the other of 0 and 1."""
    copied = json.loads(json.dumps(data))
    at = copied
    for name in path[:-1]:
        at = at[name]
    for value in (at[path[-1]] + 1, at[path[-1]] / 2, 1 - at[path[-1]]):
        at[path[-1]] = value
        try:
            return Plan.from_json(json.dumps(copied))
        except msgspec.ValidationError:
            continue
    return Plan.from_json(json.dumps(copied | {"task": "another"}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"plan     v41_flash on\n", "it is not JSON"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b"[1, 2]", "it holds a list, not an object"),
        (b'{"a": 1}', "it holds JSON, but no plan"),
        (b'{"deepinfer": "0.0.1", "layout": {}}', "a plan of deepinfer 0.0.1, and this is "),
        (b'{"deepinfer": 7, "layout": {}}', "it holds JSON, but no plan"),
    ],
)
def test_files_that_are_no_plan(tmp_path: Path, made: Made, content: bytes, words: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(Refused, match=words) as refused:
        difference(str(file), Invocation(verb="plan"), made(*B200))
    assert len(refused.value.problems) == 1 and refused.value.exit_code == 2


def test_a_plan_without_a_field_of_this_version(written: Callable[..., Path], made: Made) -> None:
    file = written(*B200)
    data = json.loads(file.read_text("utf-8"))
    del data["cost"]
    file.write_text(json.dumps(data), "utf-8")
    with pytest.raises(Refused, match=r"missing required field `cost`"):
        difference(str(file), Invocation(verb="plan"), made(*B200))


def test_files_that_cannot_be_read(capsys: Capture, tmp_path: Path, made: Made) -> None:
    assert main(["plan", f"diff={tmp_path / 'nowhere.json'}"]) == 2
    captured = capsys.readouterr()
    assert "cannot be read: No such file" in captured.err and captured.out == ""
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(Refused, match=re.escape(f"diff={tmp_path / 'plan.json'}")):
        difference(str(tmp_path), Invocation(verb="plan"), made(*B200))


def test_what_hardly_moved_is_counted_and_not_shown() -> None:
    share = Change(section="cost", key="decode_share", before=0.5, after=0.50001)
    rate = Change(section="cost", key="ttft_s", before=0.5, after=0.5001, unit="s")
    blocks = Change(section="capacity", key="num_blocks", before=10**6, after=10**6 + 1)
    used = Change(section="memory", key="device_bytes", before=10, after=20, unit="B")
    left = Change(section="memory", key="headroom_bytes", before=20, after=10, unit="B")
    size = Change(section="memory", key="state", before=10**9, after=10**9 + 128, unit="B")
    assert notable([share, rate, size, blocks]) == ([rate, blocks], 2)
    assert notable([used, left]) == ([used], 0)
    assert notable([left]) == ([left], 0), "usable memory changed: nothing else says so"
    told = Difference(file="a.json", same=False, changes=(share, rate), origins={}).text().splitlines()
    assert told[0] == "diff     a.json → this plan: 1 thing changed; 1 by less than 0.01%, not shown"
    assert len(told) == 2


def test_costs_come_first_then_layout_and_memory(made: Made) -> None:
    changes = compare(made(*B200), made("hardware=b200", "parallel=ep64", "cache=prefix"))
    sections = list(dict.fromkeys(change.section for change in changes))
    assert sections[:5] == ["cost", "chosen", "layout", "memory", "capacity"]
    headline = [figure.name for figure in made(*B200).cost.headline]
    assert changes[0].key in headline
    sizes = [change for change in changes if "bytes" in change.key.rpartition(".")[2] and not change.key.endswith("_s")]
    assert sizes and {change.unit for change in sizes} == {"B"}


def test_numbers_in_words() -> None:
    assert shown(1_500_000_000, "B") == "1.5 GB"
    assert shown(0.25, "s") == "250 ms"
    assert shown(12345) == "12,345"
    assert (shown(None), shown(True), shown("")) == ("none", "true", "nothing")
    assert shown(413, "B") == "413 B" and shown(0, "B") == "0 B" and shown(56_800_808_064, "B") == "56.8 GB"
    assert moved_by(Change(section="memory", key="x", before=100, after=150, unit="B")) == "+50 B, +50 %"
    assert moved_by(Change(section="memory", key="x", before=10, after=1000)) == "+990, ×100"
    assert moved_by(Change(section="memory", key="x", before=0, after=3)) == "+3"
    assert moved_by(Change(section="memory", key="x", before="a", after=3)) == ""
    near = lines([Change(section="memory", key="x", before=10**12, after=10**12 + 1, unit="B")])
    assert near == ["memory   x                           1000000000000 B → 1000000000001 B  (+1 B, +1e-10 %)"]
    (row,) = lines([Change(section="cost", key="ttft_s", before=0.0548412, after=0.0548436, unit="s")])
    assert "54.8412 ms → 54.8436 ms" in row
    many = [Change(section="memory", key=str(i), before=0, after=1) for i in range(9)]
    assert lines(many, at_most=3)[-1] == "memory   … and 6 more"
    assert len(lines(many[:4], at_most=3)) == 4, "one line too many is shorter than a line that says so"
