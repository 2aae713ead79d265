"""JSON written by somebody else, read so that whatever lies there becomes either an object or one sentence."""

import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 100_000_000  # also what the safetensors library takes as the longest header
MAX_DEPTH = 64  # levels; a released config.json has four
SHOWN_CHARACTERS = 60


def read_object(path: Path) -> dict[str, Any]:
    """The object that the JSON file `path` holds. Raises FileNotFoundError, else ValueError with a clause that says why."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is not a regular file")
        if found.st_size > MAX_JSON_BYTES:
            raise ValueError(f"it is {found.st_size:,} bytes long; {MAX_JSON_BYTES:,} is the limit")
        return parse_object(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error


def parse_object(text: bytes) -> dict[str, Any]:
    """The object that JSON `text` spells, at most MAX_DEPTH deep. Raises ValueError with a clause that says why not."""
    try:
        value = json.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start} is 0x{text[error.start]:02x})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not an object")
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
    if level:
        raise ValueError("it is nested too deeply")
    return value


def shown(text: str) -> str:
    """A name out of a file as it can be printed: as it stands if it is short and plain, else quoted and shortened."""
    if len(text) > SHOWN_CHARACTERS:
        return f"{text[:SHOWN_CHARACTERS]!r}… ({len(text):,} characters)"
    return text if text and text.isprintable() else repr(text)


def printable(text: str) -> str:
    """Text out of a file for a terminal: characters that would do something there become their escapes."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def is_count(value: object) -> bool:
    """A whole number that a 64-bit file offset or size can be; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _children(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inner if isinstance(item, dict | list)]
