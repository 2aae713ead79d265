"""From the command line to a verb: parse, compose, convert, call; and the one place that turns failures into exit codes."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from msgspec import structs

from deepinfer.cli.line import checked, misplaced_words, with_verb
from deepinfer.cli.refusal import refuse
from deepinfer.cli.streams import prepare_streams
from deepinfer.cli.termination import Termination
from deepinfer.config import argv
from deepinfer.config.argv import VERBS, CommandLine, Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.config.runnable import NOT_BUILT
from deepinfer.config.specs import Spec

Verb = Callable[[Spec, Invocation], int]
INSTEAD = {  # a verb that is not built yet → what does the nearest thing
    "simulate": "deepinfer plan",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code (see `ExitCode`). Nothing a user types gives a traceback."""
    prepare_streams()
    with Termination() as termination:
        code = _guarded(sys.argv[1:] if arguments is None else arguments, termination)
    return ExitCode.TERMINATED if termination.asked and code == ExitCode.INTERRUPTED else code


def _guarded(arguments: Sequence[str], termination: Termination) -> int:
    try:
        return _answer(arguments)
    except KeyboardInterrupt:
        print(f"deepinfer: {'terminated' if termination.asked else 'interrupted'}", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; end without complaint
        return ExitCode.OK
    except Exception:  # noqa: BLE001 — the outermost loop
        traceback.print_exc()
        print("deepinfer: this is a fault of deepinfer, not of your input; the lines above say where", file=sys.stderr)
        return ExitCode.OTHER


def _answer(arguments: Sequence[str]) -> int:
    """Run, or say why not."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        return refuse(error, arguments)


def _run(arguments: Sequence[str]) -> int:
    line = argv.parse(arguments)
    if line.has_flag("--help", "-h"):
        return _help(line.verb)
    if line.has_flag("--version"):
        return _version()
    if line.has_flag("--shell-completion", "-sc"):
        from deepinfer.cli.inspect import complete

        return complete(arguments)
    line = with_verb(line)
    if "task=rank" in line.overrides:
        from deepinfer.cli.rank import run as run_rank  # a rank composes nothing

        return run_rank(line, list(misplaced_words("rank", line)))
    if line.has_flag("--multirun", "-m"):
        from deepinfer.cli.sweep import sweep

        return sweep(line)
    spec, choices = checked(line)
    if line.has_flag("--cfg", "-c", "--info", "-i"):
        from deepinfer.cli.inspect import view

        return view(line)
    return _call(line, spec, choices)


def _help(verb: str | None) -> int:
    from deepinfer.cli.help import render_help

    print(render_help(verb))
    return ExitCode.OK


def _version() -> int:
    from deepinfer import __version__

    print(f"deepinfer {__version__}")
    return ExitCode.OK


def _call(line: CommandLine, spec: Spec, choices: dict[str, str]) -> int:
    verb = spec.task.kind
    if verb in NOT_BUILT["task.kind"]:
        built = listed(name for name in VERBS if name not in NOT_BUILT["task.kind"])
        found, why = "this version has no such verb yet", f"built are {built}"
        raise Refused([Problem(asked=verb, found=found, why=why, fix=INSTEAD[verb], code=ExitCode.OTHER)])
    run = cast(Verb, import_module(f"deepinfer.cli.{verb}").run)
    folder = line.flag_value("--config-dir", "-cd")
    asked = Invocation(verb=verb, overrides=line.overrides, choices=choices, texts=line.texts, config_dir=folder)
    return run(spec, structs.replace(asked, **line.words))
