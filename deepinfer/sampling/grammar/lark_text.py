"""The smallest parts of a Lark text: literals, regular expressions, JSON values."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance

from deepinfer.sampling.grammar.backend import GrammarError

JSON_OPTIONS = {"whitespace_pattern": "(\\n[ ]{0,16}|[ ]?)", "lenient": False, "coerce_one_of": False}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A text inside a regular expression."""
    return re.sub(r"([\\.+*?()\[\]{}|^$/&~#-])", r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")


def regex(pattern: str) -> str:
    r"""A regular expression of a request; \d and \w are ASCII, as in ECMA 262 and JSON Schema."""
    return f"/{llguidance.regex_to_lark(pattern, use_ascii='dw')}/"


def json_value(schema: Any) -> str:
    """A JSON value under a schema."""
    if schema is False:
        raise GrammarError("the schema is false, so that nothing is allowed: write what is")
    options = {"x-guidance": JSON_OPTIONS}
    return f"%json {json.dumps(options | ({} if schema is True else schema))}"
