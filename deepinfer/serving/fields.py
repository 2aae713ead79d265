"""The fields of a request body: each one is used, or a hint that the API itself says changes no text, or refused by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


MAX_NAME = 64  # characters of an unknown name that are compared; its time grows with their square


class FieldError(ValueError):
    """A request asks for something that is wrong or not built. `param` is the path of the field, in the API's own words."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds. Raises FieldError where it holds none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(f"the body is no JSON ({error}): send one JSON object", code="invalid_json") from None
    if not isinstance(value, dict):
        raise FieldError(f"the body is {kind_of(value)}: send one JSON object", code="invalid_json")
    return value


def check_names(
    body: Mapping[str, Any],
    *,
    used: Collection[str],
    hints: Collection[str] = (),
    unbuilt: Mapping[str, tuple[Any, str]] | None = None,
    where: str = "",
) -> None:
    """Refuse by name what nobody would read. `unbuilt` maps a field to (the value that asks for nothing, why no other)."""
    for name, value in body.items():
        path = where + name
        if name in used or name in hints:
            continue
        neutral, why = (unbuilt or {}).get(name, (None, ""))
        if not why:
            near = difflib.get_close_matches(name[:MAX_NAME], [*used, *hints], 1)
            meant = f", did you mean {near[0]}?" if near else f": leave it out; there are {', '.join(sorted(used))}"
            raise FieldError(f"unknown parameter {path!r:.100}{meant}", param=path, code="unknown_parameter")
        if value is not None and value != neutral:
            raise FieldError(f"{path}={value!r:.80} is not supported: {why}", param=path, code="unsupported_parameter")


def check_inner(value: Any, used: Collection[str], where: str, **more: Any) -> None:
    """As `check_names`, of an object inside a body, where null is as if the field were absent. Anything else than an object is
    left to whoever reads it."""
    if isinstance(value, dict):
        given = {name: one for name, one in value.items() if one is not None}
        check_names(given, used=used, where=f"{where}.", **more)


def field(body: Mapping[str, Any], name: str, kind: Any, *, where: str = "", default: Any = None) -> Any:
    """The value of a field as `kind` (a type that msgspec converts to), `default` where it is absent or null."""
    value = body.get(name)
    if value is None:
        return default
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise FieldError(f"{where}{name}={value!r:.80} is wrong: {error}", param=where + name) from None


def needed(body: Mapping[str, Any], name: str, kind: Any, *, where: str = "") -> Any:
    """As `field`, of a field that must be there."""
    if body.get(name) is None:
        raise FieldError(f"{where}{name} is missing", param=where + name, code="missing_required_parameter")
    return field(body, name, kind, where=where)


def kind_of(value: Any) -> str:
    """What a JSON value is, for people."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
