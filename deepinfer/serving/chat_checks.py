"""What is plainly wrong with a chat before it is rendered: its options, and its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROLES = "system, user, assistant, tool, latest_reminder"
_OPTIONS = ("thinking", "tools", "tool_choice", "response_format")


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
    if problems:
        raise ChatError("; ".join(problems))


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
