"""Paths as people write them: `~` and `~name` become folders, and what cannot be one is refused in words."""

import os
from pathlib import Path

from deepinfer.config.errors import ExitCode, Problem, Refused


def user_path(text: str, asked: str) -> Path:
    """The path that `text` names, with `~` expanded; `asked` is the key, or the flag, that it was given for.

    Raises Refused where no home folder is known for `~` or `~name`.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # pathlib's own, for a user that the system does not know
        given = f"{asked}{' ' if asked.startswith('-') else '='}"
        found = f"there is no home folder for {text.partition('/')[0]}"
        why = "~ and ~name stand for home folders"
        fix = f"{given}./{text}" if os.path.lexists(text) else ""  # a file whose name begins so
        raise Refused([Problem(asked=f"{given}{text}", found=found, why=why, fix=fix)]) from error


def check_working_directory() -> None:
    """Raise Refused where the folder that this process runs in was deleted: no path means anything then."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        found, why = "it no longer exists", "every relative path begins there"
        problem = Problem(asked="the working directory", found=found, why=why, fix='cd "$HOME"', code=ExitCode.OTHER)
        raise Refused([problem]) from error
