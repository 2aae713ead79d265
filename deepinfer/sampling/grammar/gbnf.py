"""GBNF made ready for the library that translates it to Lark: escapes it garbles, names it takes for one."""

from __future__ import annotations

import re

from deepinfer.sampling.grammar.backend import GrammarError

_PARTS = re.compile(
    r'(?P<text>"(?:\\.|[^"\\\n])*")|(?P<letters>\[(?:\\.|[^\]\\\n])*\])|(?P<note>\#[^\n]*)|(?P<name>[A-Za-z][\w-]*)',
    re.S,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.S)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain_gbnf(text: str) -> str:
    """The same grammar with \\x41, \\u00e9 and \\U0001f642 as letters, and no two names that differ in case only."""
    taken: dict[str, str] = {}  # a name as the library sees it → the name that has it
    renamed: dict[str, str] = {}

    def part(found: re.Match[str]) -> str:
        whole = found[0]
        if found["text"] or found["letters"]:
            letter = _in_text if found["text"] else _in_class
            return whole[0] + _ESCAPE.sub(letter, whole[1:-1]) + whole[-1]
        if found["note"]:
            return ""
        if whole not in renamed:
            renamed[whole] = _own_name(whole, taken)
        return renamed[whole]

    return _PARTS.sub(part, text)


def _in_text(escape: re.Match[str]) -> str:
    code = _code(escape)
    if code is None:
        return escape[0]
    letter = chr(code)
    if letter in _SHORT:
        return _SHORT[letter]
    if code < 32 or code == 127:
        raise GrammarError(
            f"ebnf holds {escape[0]}, a control character, which is not read in a text: write [{escape[0]}]"
        )
    return f"\\{letter}" if letter in '"\\' else letter


def _in_class(escape: re.Match[str]) -> str:
    code = _code(escape)
    return escape[0] if code is None else f"\\x{code:02x}" if code < 128 else chr(code)


def _code(escape: re.Match[str]) -> int | None:
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return None
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise GrammarError(f"ebnf holds {escape[0]}, which is no character: write the character itself")
    return code


def _own_name(name: str, taken: dict[str, str]) -> str:
    """The name, with a number behind it where another one is the same but for case and dashes."""
    number, own = 1, name
    while taken.setdefault(own.lower().replace("-", "_"), name) != name:
        number += 1
        own = f"{name}-{number}"
    return own
