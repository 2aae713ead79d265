"""What llguidance says of a grammar, without the text that it was made into, and in terms of what is typed here."""

from __future__ import annotations

import re

_ONE_OF = "the cases of a oneOf must exclude each other by a const member or their type: give them one, or write anyOf"
_NOTHING = (
    "nothing finite matches it: a rule or $ref leads only to itself, or what it asks for excludes itself; give it a way "
    "to end"
)
_FUEL = (
    "it takes more work than one grammar may ({error}, a limit of llguidance): lower its numbers (multipleOf, bounds, "
    "repetitions), or leave them out"
)
_STATES = "it has needed more states than one answer may ({error}, a limit of llguidance): bound its repetitions"
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REGEX = re.compile(
    r"(?:invalid regex .*? \(in regex\): )?regex parse error:\n(?:    (.*)\n)\s*\^+\s*\nerror: (.*)", re.S
)
_HEAD_LINES = 1  # of ours, before the first line that was typed


def plain_error(error: str, *, typed: bool = False) -> str:
    """`typed`: the grammar is what the request holds, so that lines and columns mean something to who wrote it."""
    for mark in ("\n<state>", "\n   1 |", "\n   2 |", "\n<non-verbose/>"):
        error = error.partition(mark)[0]
    error = error.strip()
    if "oneOf constraints are not supported." in error:
        return _without_place(error.partition("oneOf constraints")[0], typed) + _ONE_OF
    if "NoExtensionBias" in error:
        return _NOTHING
    if "fuel exhausted" in error or "too many items" in error or "step limit" in error:
        return _FUEL.format(error=_without_place(error, typed))
    if "too many states" in error:
        return _STATES.format(error=_without_place(error, typed).removeprefix("lexer error: "))
    found = _REGEX.search(error)
    if found:
        where = _without_place(error[: found.start()], typed)
        return f"{where}the regular expression {found[1]!r:.120} cannot be read: {found[2].strip()}"
    return _without_place(error, typed)


def _without_place(error: str, typed: bool) -> str:
    """A message without its place, or with that in what was typed."""
    found = _PLACE.match(error)
    if not found:
        return error
    rest = error[found.end() :].replace("failed to compile JSON schema: ", "")
    return f"line {int(found[1]) - _HEAD_LINES}, column {found[2]}: {rest}" if typed else rest
