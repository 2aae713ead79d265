"""Overrides as they must be typed: quoted for Hydra's grammar where it would read something else, and for the shell."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

_PLAIN = re.compile(r"[\w./|%@+:-]+")  # what Hydra reads as one value, and as text where it is no number
_SHELL = re.compile(r"""[\s'"$`;&<>()*?!\\#|]""")


def typed(key: str, value: Any) -> str:
    """An override of a key with this value, ready to be pasted into a shell."""
    if not isinstance(value, str):
        return shell(f"{key}={json.dumps(value, ensure_ascii=False, default=str)}")
    return shell(f"{key}={value}" if not value or _PLAIN.fullmatch(value) else quoted(key, value))


def listed_value(key: str, *values: str | float) -> str:
    """An override of a key with a list of these values."""
    return shell(f"{key}=[{','.join(as_item(str(value)) for value in values)}]")


def as_item(text: str) -> str:
    """Text as one item of a list."""
    return text if _PLAIN.fullmatch(text) else quoted("", text)[1:]


def shell(argument: str) -> str:
    """An argument, quoted if a shell would make something else of it."""
    return shlex.quote(argument) if _SHELL.search(argument) else argument


def plan_line(overrides: Sequence[str], *changes: str) -> str:
    """The plan of the same words, to be typed: all of them but those of the task and of what the `changes` set anew."""
    anew = ["task", *(_key(change) for change in changes)]
    words = [word for word in overrides if not f"{_key(word)}.".startswith(tuple(f"{key}." for key in anew))]
    return " ".join(["deepinfer plan", *map(shell, words), *changes])


def launch_line(overrides: Sequence[str], *changes: str) -> str:
    """A launch of ranks that generate by the same words, to be typed; `changes` as for `plan_line`."""
    line = plan_line(overrides, *changes).replace("deepinfer plan", "deepinfer launch", 1)
    return f"{line} task.run=generate out=launched"


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def quoted(key: str, value: str) -> str:
    """An override whose value Hydra reads as exactly this text."""
    bare = value
    for quote in ("'", '"'):
        if len(value) > 1 and value[0] == value[-1] == quote:
            bare = value[1:-1]
    escaped = re.sub(r"(\\*)(\"|$)", lambda m: m.group(1) * 2 + ("\\" + m.group(2) if m.group(2) else ""), bare)
    return f'{key}="{escaped}"'
