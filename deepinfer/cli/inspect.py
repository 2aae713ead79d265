"""Hydra's own views of the configuration: --cfg, --info and shell completion. Nothing runs behind them."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import hydra

from deepinfer.cli.completion import candidates
from deepinfer.config.argv import CommandLine
from deepinfer.config.compose import hydra_of_our_own
from deepinfer.config.env import foreign
from deepinfer.config.errors import ExitCode, Problem, Refused, listed, nearest
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.paths import user_path
from deepinfer.config.quoting import quoted

SHELLS = ("bash", "zsh", "fish")


@hydra.main(version_base="1.3", config_path="pkg://deepinfer.conf", config_name="config")
def _show(_: Any) -> None:
    raise AssertionError("Hydra was asked to show something, not to run")


def complete(argv: Sequence[str]) -> int:
    """Shell completion: Hydra writes the function to install; what that asks for, for each key press, is answered here."""
    wanted = [text for text in argv if text.startswith(("install=", "uninstall=", "query="))]
    if len(wanted) != 1:
        missing, fix = "nothing to install is named", "deepinfer -sc install=bash"
        raise Refused([Problem(asked=" ".join(argv), found=missing, why="a shell is named after it", fix=fix)])
    what, _, shell = wanted[0].partition("=")
    if shell not in SHELLS:
        close, why = nearest(shell, SHELLS) or SHELLS[0], f"there are {listed(SHELLS)}"
        raise Refused([Problem(asked=wanted[0], found="no such shell", why=why, fix=f"deepinfer -sc {what}={close}")])
    if what != "query":
        return _with_argv(["-sc", *wanted])  # a verb would be an override to Hydra
    line = foreign()
    found = candidates(line.comp_line[: line.comp_point])
    print(("\n" if shell == "fish" else " ").join(found))
    return ExitCode.OK


def view(line: CommandLine) -> int:
    """Let Hydra show a checked command line; free text is handed over quoted, for showing only."""
    config_dir = line.flag_value("--config-dir", "-cd")
    with hydra_of_our_own() as loader:
        ready, problems = prepare(line.overrides, Groups(loader, config_dir))
    assert not problems, "the command line was checked before"
    folder = ["--config-dir", str(user_path(config_dir, "--config-dir").absolute())] if config_dir else []
    texts = ["++" + quoted(key, text.replace("${", "\\${")) for key, text in line.texts.items()]
    return _with_argv([*_shown(line), *folder, *ready, *texts])


def _shown(line: CommandLine) -> list[str]:
    """The flags that say what to show."""
    flags = ["--resolve"] if line.has_flag("--resolve") else []
    for names in (("--cfg", "-c"), ("--info", "-i"), ("--package", "-p")):
        value = line.flag_value(*names)
        flags += [names[0], value] if value is not None else []
    return flags


def _with_argv(argv: Sequence[str]) -> int:
    """Call Hydra's entry with these arguments and print what it shows in one piece (its log cannot lose its reader)."""
    before = sys.argv
    sys.argv = [before[0], *argv]
    shown = StringIO()
    try:
        with redirect_stdout(shown):
            _show()
        code = ExitCode.OK
    except SystemExit as stop:
        code = ExitCode.CONFIG if stop.code else ExitCode.OK
    finally:
        sys.argv = before
    print(shown.getvalue(), end="")
    return code
