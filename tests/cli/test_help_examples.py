"""Every example of --help that plans or renders is typed here, as it stands."""

import shlex
from pathlib import Path

import pytest

from deepinfer.cli.help import render_help
from deepinfer.cli.main import main
from deepinfer.config.argv import WORDS_OF_VERB
from deepinfer.config.serving import Serving

RUNS = ("plan", "launch")  # the other verbs run an engine or look at the machine; their own tests do


def examples(verb: str | None) -> list[str]:
    """The command lines of a help page, in its order."""
    _, _, below = render_help(verb).partition("\nexamples\n")
    lines = [line.strip() for line in below.splitlines()]
    return [
        line for line in lines if line.startswith(tuple(f"deepinfer {name} " for name in RUNS)) and " -m " not in line
    ]


@pytest.mark.parametrize("page", ["", *RUNS])
def test_examples_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = examples(page or None)
    assert len(commands) >= 2
    for command in commands:
        line, _, file = command.partition(" > ")
        code = main(shlex.split(line)[1:])
        captured = capsys.readouterr()
        assert code == (1 if "diff=" in line else 0), (command, captured.err)  # as diff(1): 1 where plans differ
        if file:
            (tmp_path / file).write_text(captured.out)


def test_the_help_of_serve_lists_its_settings() -> None:
    """Every key with its default and what it is for; the names alone would have to be looked up."""
    told = [line.split("   ") for line in render_help("serve").splitlines() if line.startswith("  serving.")]
    assert [line[0].strip().partition("=")[0] for line in told] == [
        f"serving.{name}" for name in Serving.__struct_fields__ if name not in ("kind", "implementation")
    ]
    assert ["  serving.port=8000", "0 takes a free one"] in told
    assert all(len(line) == 2 for line in told)


@pytest.mark.parametrize("verb", WORDS_OF_VERB)
def test_the_words_of_a_verb_are_explained(verb: str) -> None:
    for word in WORDS_OF_VERB[verb]:
        assert f"\n  {word}=" in render_help(verb)
