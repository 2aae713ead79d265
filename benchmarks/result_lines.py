"""A file of JSON lines to which measurements are added, and which may end in the middle of a line: who wrote it was killed.

Whole lines count. What is half written at the end is left out when reading and cut off when adding. A whole line that is no
measurement is refused, with its place.
"""

import json
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any

Line = dict[str, Any]
_NUMBERS = ("median_us", "p10_us", "p90_us", "tflops", "gbytes_per_s", "floor_us", "share")
_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("op", "case", "bound", "device", "commit"), str),
    "cuda": (str, type(None)),  # of a torch without it
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(("peers_us", "ratios", "versions"), dict),
}


def read(path: Path) -> list[Line]:
    """Lines of a results file; none where it does not exist. Raises ValueError where one of them is no measurement."""
    raw = path.read_bytes() if path.is_file() else b""
    found = []
    for number, text in enumerate(raw[: _end_of_lines(raw)].split(b"\n"), start=1):
        if text.strip():
            line = _parsed(text)
            if fault := _fault(line):
                raise ValueError(f"line {number} of {path.name} {fault}; take it out, or time again with --record")
            found.append(line)
    return found


def add(path: Path, lines: Iterable[Line]) -> None:
    """Behind the last whole line, in one piece. OSError where the file cannot be written."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    raw = path.read_bytes() if path.is_file() else b""
    end = _end_of_lines(raw)
    with path.open("ab") as file:
        file.truncate(end)
        file.write(b"\n" * (raw[:end][-1:] not in (b"", b"\n")) + text)


def _end_of_lines(raw: bytes) -> int:
    """Behind the last line break, or the end of the file where what follows is a measurement all the same."""
    start = raw.rfind(b"\n") + 1
    return start if _fault(_parsed(raw[start:])) else len(raw)


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # of the encoding as well
        return None


def _fault(line: Any) -> str:
    """Why this is no measurement; nothing where it is one."""
    if not isinstance(line, dict):
        return "is no JSON object"
    if missing := [name for name in _KINDS if name not in line]:
        return f"lacks {', '.join(missing)}"
    if wrong := [name for name, kind in _KINDS.items() if not isinstance(line[name], kind)]:
        return f"has other than what is measured in {', '.join(wrong)}"
    if not all(map(isfinite, (line[name] for name in _NUMBERS))) or line["median_us"] <= 0:
        return "has a time of nothing, or a number without bound"
    if unlike := sorted(set(line["peers_us"]) ^ set(line["ratios"])):
        return f"has a time or a ratio alone of {', '.join(unlike)}"
    return ""
