"""Hydra's own views of the configuration: --cfg, --info and shell completion. Nothing runs behind them."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import hydra

from deepinfer.cli.completion import candidates
from deepinfer.config.argv import CommandLine
from deepinfer.config.compose import hydra_of_our_own
from deepinfer.config.env import foreign
from deepinfer.config.errors import ExitCode
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.quoting import quoted


@hydra.main(version_base="1.3", config_path="pkg://deepinfer.conf", config_name="config")
def _show(_: Any) -> None:
    raise AssertionError("Hydra was asked to show something, not to run")


def complete(argv: Sequence[str]) -> int:
    """Shell completion: Hydra writes the function to install; what that asks for, for each key press, is answered here."""
    asked = next((text.removeprefix("query=") for text in argv if text.startswith("query=")), None)
    if asked is None:
        return _with_argv(argv)
    line = foreign()
    found = candidates(line.comp_line[: line.comp_point])
    print(("\n" if asked == "fish" else " ").join(found))
    return ExitCode.OK


def view(line: CommandLine) -> int:
    """Let Hydra show a checked command line; free text is handed over quoted, for showing only."""
    config_dir = line.flag_value("--config-dir", "-cd")
    with hydra_of_our_own() as loader:
        ready, problems = prepare(line.overrides, Groups(loader, config_dir))
    assert not problems, "the command line was checked before"
    folder = ["--config-dir", str(Path(config_dir).expanduser().absolute())] if config_dir else []
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
