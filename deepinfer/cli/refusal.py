"""A refusal on its way out: text on stderr, or JSON on stdout for a CI that asked for format=json."""

import os
import sys
from collections.abc import Sequence

import msgspec

from deepinfer.cli.streams import printable_json
from deepinfer.config import argv
from deepinfer.config.errors import ExitCode, Problem, Refused, render_problems


def refuse(error: ValueError | OSError, arguments: Sequence[str]) -> int:
    """Tell what stands against a command line, with file and line of what a file says; returns the exit code."""
    line = argv.parse(arguments)
    code = getattr(error, "exit_code", ExitCode.OTHER)
    problems: Sequence[Problem] = error.problems if isinstance(error, Refused) else ()
    if problems and line.verb != "rank":  # a rank composes nothing
        from deepinfer.config.placed import placed

        problems = placed(problems, line.overrides, line.texts, line.flag_value("--config-dir", "-cd"))
    text = f"deepinfer: {render_problems(problems) if problems else error}"
    if line.words.get("format") != "json":
        print(text, file=sys.stderr)
        return int(code)
    try:
        print(printable_json(problems_json(problems or [_other(error)], code)))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as unwritable:  # a full disk: the people's text is left to say it with
        print(f"deepinfer: stdout cannot be written: {unwritable.strerror}\n{text}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered has nowhere to go
    return int(code)


def problems_json(problems: Sequence[Problem], code: ExitCode) -> str:
    """{"exit_code": …, "problems": [{"asked", "found", "why", "fix", "code", "file", "line"}, …]}"""
    data = {"exit_code": int(code), "problems": problems}
    return msgspec.json.format(msgspec.json.encode(data, enc_hook=str)).decode()


def _other(error: Exception) -> Problem:
    """A failure that is no refusal of what was asked, such as a file that vanished."""
    return Problem(asked="", found=str(error), code=ExitCode.OTHER)
