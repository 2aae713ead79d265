"""The standard streams as a program finds them: perhaps closed, perhaps of an encoding that lacks what is printed."""

from __future__ import annotations

import io
import json
import os
import re
import sys

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def prepare_streams() -> None:
    """Give closed streams a place to go, so that no file is opened in theirs; characters without a code become escapes."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, this one
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 — for the rest of the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable_json(text: str) -> str:
    """JSON text that stays JSON on this stdout: with JSON's own escapes unless the encoding has every character."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    return text if encoding.startswith("utf") else _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def read_stdin() -> str:
    """All of stdin. Raises ValueError where it is closed, or holds bytes that are no text."""
    if sys.stdin is None:
        raise ValueError("stdin is closed")
    try:
        text = sys.stdin.read()
        text.encode()
    except UnicodeError:
        raise ValueError(f"stdin holds bytes that are not {sys.stdin.encoding or 'utf-8'}") from None
    return text
