"""What a request of any dialect asks for, in the terms of Chat Completions, so that one rule holds on all."""

from __future__ import annotations

from typing import Any

import msgspec

from deepinfer.serving.fields import FieldError


class ChatAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`sampling` holds fields of SamplingParams that the request names; what it leaves out is the service's default. A dialect
    that has room for one answer alone leaves `several` False.

    `thinking` None leaves it to the service. `parallel_tool_calls` False ends an answer after its first call.
    """

    model: str | None
    messages: list[dict[str, Any]]
    place: str = "messages"  # the field of the body that holds them
    stream: bool = False
    max_tokens: int | None = None
    sampling: dict[str, Any] = {}
    several: bool = False
    thinking: bool | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    form: str | None = None  # the field of the body that asks for a form of the answer
    parallel_tool_calls: bool = True
    cache_salt: str = ""
    priority: int = 0
    notices: tuple[str, ...] = ()  # wishes that were heard and have no effect


def check_continued(messages: list[dict[str, Any]], tools: Any, place: str) -> None:
    """Raise FieldError where the last message would be continued beside tools or calls."""
    last = messages[-1] if messages else {}
    continued = last.get("role") == "assistant" and last.get("prefix", True)
    if continued and (tools or any(message.get("tool_calls") for message in messages)):
        why = "V4.1's format cannot continue the assistant's last message beside tools or calls: end with a message of the user"
        raise FieldError(f"{place}: {why}", param=place)


def function_tool(name: str, description: str | None, parameters: Any, strict: bool | None) -> dict[str, Any]:
    """A tool in the form of Chat Completions."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of the history in the form of Chat Completions. `arguments` is JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
