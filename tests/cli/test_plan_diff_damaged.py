"""Files of `diff=` that somebody spoiled: one problem each, and nothing of theirs reaches the terminal raw."""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from deepinfer.cli.main import main

Capture = pytest.CaptureFixture[str]
TINY = ("plan", "model=v41_tiny", "model.weights=dummy")
ESCAPE, TURNED = "\x1b[31mred", "\u202e"


@pytest.fixture(scope="module")
def plan_text() -> str:
    stream, before = io.StringIO(), sys.stdout
    sys.stdout = stream
    try:
        assert main([*TINY, "format=json"]) == 0
    finally:
        sys.stdout = before
    return stream.getvalue()


def spoiled(change: Callable[[dict[str, Any]], Any]) -> Callable[[str], str]:
    def spoil(text: str) -> str:
        data = json.loads(text)
        change(data)
        return json.dumps(data)

    return spoil


DAMAGE = [
    (lambda text: "[" * 100_000, "nested too deeply"),
    (lambda text: text.rstrip()[:-1] + ', "x": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply"),
    (spoiled(lambda plan: plan["layout"].update(roles=[])), "layout.roles is empty"),
    (spoiled(lambda plan: plan["cost"]["prefill"].update(steps=[])), "cost.prefill.steps is empty"),
    (spoiled(lambda plan: plan["cost"]["decode"]["point"].update(steps=[])), "cost.decode.point.steps is empty"),
    (spoiled(lambda plan: plan.update(zzz=1)), "unknown field `zzz`"),
    (spoiled(lambda plan: plan.update(deepinfer="9.9")), "a plan of deepinfer 9.9, and this is"),
    (spoiled(lambda plan: plan.update(deepinfer=ESCAPE * 99)), "characters), and this is"),
]


@pytest.mark.parametrize(("spoil", "found"), DAMAGE)
def test_damaged_plans(capsys: Capture, tmp_path: Any, plan_text: str, spoil: Callable[[str], str], found: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(spoil(plan_text), "utf-8")
    assert main([*TINY, f"diff={file}"]) == 2
    err = capsys.readouterr().err
    assert "1 problem" in err and found in err
    assert "Traceback" not in err and "describe a plan differently" not in err and "\x1b" not in err


def test_names_that_would_speak_to_the_terminal(capsys: Capture, tmp_path: Any, plan_text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(spoiled(lambda plan: plan["model"].update(name=ESCAPE + TURNED))(plan_text), "utf-8")
    assert main([*TINY, f"diff={file}"]) == 1
    out = capsys.readouterr().out
    assert "\\x1b[31mred\\u202e" in out and "\x1b" not in out and TURNED not in out


def test_closed_stdin(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main([*TINY, "diff=-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err
