"""What is plainly wrong with a chat before it is rendered: its options, and its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROLES = "system, user, assistant, tool, latest_reminder"
_OPTIONS = ("thinking", "tools", "tool_choice", "response_format")


_FORMATS = {
    "text": '{"type": "text"}',
    "json_object": '{"type": "json_object"}',
    "json_schema": '{"type": "json_schema", "json_schema": {"name": "…", "schema": {…}}}',
    "regex": '{"type": "regex", "regex": "yes|no"}',
}


class ChatError(ValueError):
    """A conversation that cannot be rendered; the message says where and what to write instead."""


def check_options(**options: Any) -> None:
    """Raise ChatError with all that is wrong with what shapes a chat, whatever its messages are."""
    problems = [
        f"a chat has no option {name!r}: there are {', '.join(_OPTIONS)}" for name in options if name not in _OPTIONS
    ]
    thinking, tools, choice = (options.get(name) for name in ("thinking", "tools", "tool_choice"))
    if "thinking" in options and not isinstance(thinking, bool):
        problems.append(f"thinking={thinking!r} is neither True nor False")
    if tools is not None and not isinstance(tools, list | tuple):
        problems.append(f"tools is a {type(tools).__name__}: give a list of tools")
    if not tools and (choice == "required" or isinstance(choice, dict)):
        problems.append(f"tool_choice={choice!r:.80} asks for a call, and there are no tools: give tools too")
    else:
        problems += _choice_problems(choice, tools or (), thinking)
    problems += _format_problems(options.get("response_format"), [] if choice == "none" else tools or ())
    if problems:
        raise ChatError("; ".join(problems))


def _choice_problems(choice: Any, tools: Any, thinking: Any) -> Iterator[str]:
    """What is wrong with a wish for calls, in words of this page rather than of the library."""
    if choice is None or (isinstance(choice, str) and choice in ("none", "auto")):
        return
    named = choice.get("function", {}) if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if choice != "required" and not (isinstance(choice, dict) and isinstance(name, str)):
        form = '{"type": "function", "function": {"name": "…"}}'
        yield f"tool_choice={choice!r:.80} is no choice: there are 'none', 'auto', 'required' and {form}"
        return
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [str(one.get("name")) for one in functions if isinstance(one, dict)]
    if name is not None and len(names) == len(tools) and name not in names:
        yield f"tool_choice names the function {name!r:.60}, which is none of the tools: there are {', '.join(names):.200}"
    elif thinking is True:
        yield "thinking does not go with a tool_choice that asks for a call: say thinking=false, or tool_choice='auto'"


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get("strict") is True


def _format_problems(wanted: Any, tools: Any) -> Iterator[str]:
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if not isinstance(kind, str) or kind not in _FORMATS:
        yield f"response_format={wanted!r:.80} is none: there are {'; '.join(_FORMATS.values())}"
    elif kind == "json_schema" and "schema" not in (wanted.get(kind) if isinstance(wanted.get(kind), dict) else {}):
        yield f"response_format has no schema: write {_FORMATS[kind]}"
    elif kind == "regex" and not isinstance(wanted.get("regex"), str):
        yield f"response_format has no regex: write {_FORMATS[kind]}"
    elif kind != "text" and any(_is_strict(tool) for tool in tools):
        yield "response_format does not go with strict tools, since the answer may be a call: leave one of them out"


def check_messages(messages: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as the library takes them, or ChatError with all that is plainly wrong with them."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple) or not messages:
        raise ChatError(
            f'a conversation is a list of messages such as {{"role": "user", "content": "…"}}; got {messages!r}'
        )
    problems = []
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message:
            problems.append(f'message {number} is {message!r}: write {{"role": "user", "content": "…"}}')
        elif message["role"] not in _ROLES.split(", "):
            problems.append(f"message {number} has the role {message['role']!r}: there are {_ROLES}")
        elif isinstance(message.get("content"), list) and any(_is_image(part) for part in message["content"]):
            problems.append(f"message {number} holds an image: only text is read so far")
        elif message["role"] == "tool" and "tool_call_id" not in message:
            problems.append(f"message {number} is a tool's result without tool_call_id: name the call it answers")
    if problems:
        raise ChatError("; ".join(problems))
    *earlier, last = messages
    return [*earlier, {"prefix": True, **last} if last["role"] == "assistant" else last]


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") != "text"
