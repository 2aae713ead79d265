"""Names inside the messages, tools and formats of /v1/chat/completions: each is read, or refused, or told to have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.fields import check_inner

if TYPE_CHECKING:
    from deepinfer.serving.openai_body import ChatBody

_MESSAGE = ("role", "content", "name")
_NEVER = "answers are text, without sources"
_OF_ASSISTANT: dict[str, Any] = {
    "used": (*_MESSAGE, "refusal", "reasoning_content", "tool_calls", "prefix"),
    "unbuilt": {
        "annotations": ([], _NEVER),
        "audio": (None, _NEVER),
        "function_call": (None, "give tool_calls"),
    },
}
_FUNCTION = ("name", "description", "parameters", "strict")
_SCHEMA = ("name", "description", "schema", "strict")


def check_nested(body: ChatBody) -> tuple[str, ...]:
    """Notices. Raises FieldError for a name that nobody reads, with its place."""
    notices: list[str] = []
    for number, message in enumerate(body.messages):
        notices += _message(message, f"messages[{number}]")
    for number, tool in enumerate(body.tools or ()):
        check_inner(tool, ("type", "function"), f"tools[{number}]")
        check_inner(tool.get("function"), _FUNCTION, f"tools[{number}].function")
    if isinstance(body.tool_choice, dict):
        check_inner(body.tool_choice, ("type", "function"), "tool_choice")
        check_inner(body.tool_choice.get("function"), ("name",), "tool_choice.function")
    if body.response_format is not None:
        kind = body.response_format.get("type")
        forms = (kind,) if isinstance(kind, str) and kind in ("json_schema", "regex") else ()
        check_inner(body.response_format, ("type", *forms), "response_format")
        notices += schema_notices(body.response_format.get("json_schema"), "response_format.json_schema")
    return tuple(notices)


def schema_notices(form: Any, place: str) -> list[str]:
    """Of what stands around a JSON schema. Raises FieldError as `check_nested` does."""
    check_inner(form, _SCHEMA, place)
    if isinstance(form, dict) and form.get("description"):
        return [f"{place}.description has no effect: V4.1's format shows the model the schema alone"]
    return []


def _message(message: dict[str, Any], place: str) -> list[str]:
    role = message.get("role")
    if role == "assistant":
        check_inner(message, where=place, **_OF_ASSISTANT)
        for number, call in enumerate(_list(message.get("tool_calls"))):
            where = f"{place}.tool_calls[{number}]"
            check_inner(call, ("id", "type", "function"), where, hints=("index",))  # which chunks of a stream have
            check_inner(call.get("function"), ("name", "arguments"), f"{where}.function")
    else:
        check_inner(message, (*_MESSAGE, "tool_call_id") if role == "tool" else _MESSAGE, place)
    for number, part in enumerate(_list(message.get("content"))):
        if part.get("type") in ("text", "refusal"):  # others are refused as a whole, by their type
            check_inner(part, ("type", part["type"]), f"{place}.content[{number}]", hints=("cache_control",))
    if message.get("name") and role != "tool":  # whose call has the name already
        return [f"{place}.name has no effect: V4.1's format has no names of speakers"]
    return []


def _list(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; whatever is none is refused elsewhere."""
    return [one if isinstance(one, dict) else {} for one in value] if isinstance(value, list) else []
