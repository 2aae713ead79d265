"""One call as the model wrote it: whether it is whole and well-formed, and what is mended before it is read.

Markers stand here in their private spelling (serving/markers.py). deepseek-recipe reads calls leniently: a broken value
becomes broken arguments, and a value such as `3, "x": 4` becomes two. Here a call is held against the format first.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from deepinfer.serving.markers import CALL_MARKER as M

if TYPE_CHECKING:
    from collections.abc import Mapping

OPENING = f"<{M} calls>"
CLOSING = f"</{M} calls>"
INVOKE = f'<{M} invoke name="'
INVOKE_END = f"</{M} invoke>"
_PARAMETER = re.compile(rf'\s*<{M} parameter name="([^"<>\n]+)" string="(true|false)">(.*?)</{M} parameter>', re.DOTALL)
_WRAPPER = "arguments"


class Malformed(ValueError):
    """What the model wrote is no call that anybody may execute."""


def checked_call(name: str, body: str, schema: Any) -> str:
    """The invocation of a known tool as the library shall read it; `body` is what stands between its tags.

    A call whose fields all stand in one parameter `arguments`, which the tool does not have, is unwrapped. Raises Malformed.
    """
    parameters = _parameters(body)
    wrapped = _wrapped(parameters, schema)
    text = body if wrapped is None else "\n" + "".join(_written(*item) for item in wrapped.items())
    return f'{INVOKE}{name}">{text}{INVOKE_END}\n'


def _parameters(body: str) -> dict[str, tuple[bool, str]]:
    """Name → (whether it is a text, what was written)."""
    found: dict[str, tuple[bool, str]] = {}
    at = 0
    while body[at:].strip():
        match = _PARAMETER.match(body, at)
        if match is None:
            raise Malformed("it holds something that is no parameter")
        name, is_text, value = match[1], match[2] == "true", match[3]
        if name in found:
            raise Malformed(f"it gives the parameter {name!r} twice")
        if M in value:
            raise Malformed(f"its parameter {name!r} is not closed")
        if not is_text:
            _json_value(name, value)
        found[name] = (is_text, value)
        at = match.end()
    return found


def _json_value(name: str, value: str) -> Any:
    try:
        return json.loads(value, parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"its parameter {name!r} is no JSON ({error}): {value!r:.80}") from None


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _wrapped(parameters: Mapping[str, tuple[bool, str]], schema: Any) -> dict[str, Any] | None:
    """The fields of a call that stand in one parameter too deep; None where they do not."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if list(parameters) != [_WRAPPER] or not isinstance(properties, dict) or _WRAPPER in properties:
        return None
    try:
        fields = json.loads(parameters[_WRAPPER][1], parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    plain = isinstance(fields, dict) and all(re.fullmatch(r'[^"<>\n]+', name) for name in fields)
    return fields if plain else None


def _written(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    kind = "true" if isinstance(value, str) else "false"
    return f'<{M} parameter name="{name}" string="{kind}">{text}</{M} parameter>\n'
