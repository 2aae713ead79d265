"""Completion, asked for as shells ask: the line so far in, what may come next out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.cli.completion import candidates
from deepinfer.cli.main import main
from deepinfer.config.argv import VERBS, WORDS_OF_VERB
from deepinfer.config.keys import ANY, leaf_keys
from deepinfer.config.misnamed import options_of
from deepinfer.config.specs import Spec

SCHEDULER = sorted(key for key in leaf_keys() if key.startswith("scheduler."))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("deepinfer pla", ["plan", "plan="]),
        ("deepinfer plan expl", ["explain="]),
        ("deepinfer plan format=", ["format=json", "format=mermaid", "format=ranks", "format=text"]),
        ("deepinfer doctor role=", []),
        ("deepinfer parallel=ep12", ["parallel=ep128"]),
        ("deepinfer plan parallel=ep12", ["parallel=ep128"]),
        ("deepinfer -m plan hardware=h200,gb", ["hardware=h200,gb200", "hardware=h200,gb300"]),
        ("deepinfer sampling.max", ["sampling.max_tokens="]),
        ("deepinfer ++sampling.max", []),
        ("deepinfer model.dtype=f", ["model.dtype=float32", "model.dtype=float64"]),
        ("deepinfer sampling.ignore_eos=", ["sampling.ignore_eos=false", "sampling.ignore_eos=true"]),
        ("deepinfer sampling.seed=", ["sampling.seed=null"]),
        ("deepinfer cache.num_blocks=", ["cache.num_blocks=auto"]),
        ("deepinfer parallel@deploy.p", ["parallel@deploy.prefill.parallel="]),
        ("deepinfer parallel@deploy.prefill.parallel=ep6", ["parallel@deploy.prefill.parallel=ep64"]),
        ("deepinfer --inf", ["--info"]),
        ("deepinfer --cfg ", ["all", "hydra", "job"]),
        ("deepinfer --info def", ["defaults", "defaults-tree"]),
        ("python -m deepinfer plan launcher=sl", ["launcher=slurm"]),
        ("/opt/venv/bin/deepinfer launcher=sl", ["launcher=slurm"]),
        ("deepinfer nothing_like_that", []),
        ("deepinfer sampling.n=3 'it", []),
        ("deepinfer plan explain=schedul", ["explain=scheduler", *(f"explain={key}" for key in SCHEDULER)]),
        ("deepinfer plan explain=model.dt", ["explain=model.dtype"]),
        ("deepinfer launch explain=model.dt", []),
    ],
)
def test_what_may_come_next(line: str, wanted: list[str]) -> None:
    assert candidates(line) == wanted


def test_a_verb_comes_first_and_only_there() -> None:
    assert set(VERBS) <= set(candidates("deepinfer "))
    assert not set(VERBS) & set(candidates("deepinfer sampling.n=2 "))
    assert not set(VERBS) & set(candidates("deepinfer plan "))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_offers_its_own_words(verb: str) -> None:
    offered = {text.removesuffix("=") for text in candidates(f"deepinfer {verb} ") if text.endswith("=")}
    assert offered - set(Spec.__struct_fields__) == set(WORDS_OF_VERB.get(verb, ())) - set(Spec.__struct_fields__)


def test_all_groups_options_and_keys() -> None:
    for group in Spec.__struct_fields__:
        if group != "task":
            assert f"{group}=" in candidates("deepinfer ")
            assert candidates(f"deepinfer {group}=") == [f"{group}={option}" for option in options_of(group)]
            keys = [f"{key}=" for key in leaf_keys() if key.startswith(f"{group}.") and ANY not in key]
            assert candidates(f"deepinfer {group}.") == sorted(keys)


def test_own_options_are_offered(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/our_site.yaml").write_text("kind: none\n")
    assert candidates(f"deepinfer --config-dir {tmp_path} plan cluster=our") == ["cluster=our_site"]


@pytest.mark.parametrize(("shell", "between"), [("bash", " "), ("zsh", " "), ("fish", "\n")])
def test_a_query(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str, between: str) -> None:
    line = "deepinfer plan parallel=ep and more"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(line.index(" and")))
    assert main(["-sc", f"query={shell}"]) == 0
    wanted = [f"parallel={option}" for option in options_of("parallel") if option.startswith("ep")]
    assert capsys.readouterr().out == between.join(wanted) + "\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_is_installed_asks_us(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["-sc", f"install={shell}"]) == 0
    out = capsys.readouterr().out
    assert "-sc query=" in out
    for arguments in (["plan", "--shell-completion", f"install={shell}"], ["-sc", f"install={shell}", "task=plan"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out == out, "a verb changes nothing"


@pytest.mark.parametrize("arguments", [["-sc"], ["plan", "-sc"], ["-sc", "install=bsh"], ["-sc", "install="]])
def test_completion_for_no_shell(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "type: deepinfer -sc install=bash" in captured.err and captured.out == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_in_a_real_bash(tmp_path: Path) -> None:
    """Installed by the line of --help, then called with the variables that bash sets at a press of the key."""
    command = tmp_path / "deepinfer"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m deepinfer "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(deepinfer -sc install=bash)"; COMP_LINE="deepinfer plan parallel=ep6"; COMP_POINT=${#COMP_LINE}; '
        'COMP_CWORD=2; hydra_bash_completion; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.stdout.split() == ["parallel=ep64"], done.stderr
