"""The messages of a conversation as the library takes them, or all that is plainly wrong with them, by place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from deepinfer.serving.fields import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROLES = ("system", "developer", "user", "assistant", "tool", "latest_reminder")
_EXAMPLE = '{"role": "user", "content": "…"}'


class ChatError(ValueError):
    """A conversation that cannot be rendered; the message says where and what to write instead. `param` is the place."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def check_messages(messages: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as the library takes them. A last one of the assistant is continued. Raises ChatError.

    `developer` is a system message. Assistant messages that follow each other and hold calls become one turn, since clients
    of some dialects send the calls of a turn one by one.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, list | tuple) or not messages:
        raise ChatError(
            f"a conversation is a list of messages such as {_EXAMPLE}; got {messages!r:.80}", param="messages"
        )
    problems = [(number, problem) for number, message in enumerate(messages) for problem in _message_problems(message)]
    if not problems:
        problems = list(_result_problems(messages))
    if problems:
        number, problem = problems[0]
        part = re.search(r"\((content\[\d+\])\)", problem)
        raise ChatError(
            "; ".join(f"message {number} {problem}" for number, problem in problems),
            param=f"messages[{number}]" + (f".{part[1]}" if part else ""),
        )
    *earlier, last = _turns(messages)
    return [*earlier, {"prefix": True, **last} if last["role"] == "assistant" else last]


def _message_problems(message: Any) -> Iterator[str]:
    if not isinstance(message, dict) or "role" not in message:
        yield f"is {message!r:.80}: write {_EXAMPLE}"
        return
    role, content = message["role"], message.get("content")
    if role not in _ROLES:
        yield f"has the role {role!r:.40}: there are {', '.join(_ROLES)}"
    elif content is None and not (role == "assistant" and (message.get("tool_calls") or message.get("refusal"))):
        yield "has no content" + (" and no tool_calls" if role == "assistant" else "")
    elif isinstance(content, list):
        for number, part in enumerate(content):
            yield from _part_problems(number, part)
    elif not isinstance(content, str | None):
        yield f"has {kind_of(content)} as content: write a text, or a list of parts"
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "is a tool's result without tool_call_id: name the call it answers"
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(one, dict) and isinstance(one.get("id"), str) for one in calls
    ):
        yield "has tool_calls that are no list of calls, each with an id"


def _part_problems(number: int, part: Any) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):  # of an assistant: read as text
        return
    if kind != "text":
        what = "an image" if "image" in str(kind) else f"{kind!r:.40}" if isinstance(kind, str) else f"{part!r:.40}"
        yield f'holds {what} as part {number} (content[{number}]): only text is read so far, {{"type": "text", "text": "…"}}'
    elif not isinstance(part.get("text"), str):
        yield f"has a part {number} (content[{number}]) without text"


def _result_problems(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Calls without results, and results without calls."""
    open_calls: dict[Any, int] = {}
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            if open_calls.pop(message["tool_call_id"], None) is None:
                yield number, f"is the result of {message['tool_call_id']!r:.60}, which no call before it has as id"
        elif open_calls and message["role"] != "assistant":
            break
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            open_calls |= {call["id"]: number for call in calls}
    for call_id, number in open_calls.items():
        yield (
            number,
            f"calls a tool with the id {call_id!r:.60}, and no result follows it: send a message of the role tool",
        )


def _turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        message = _plain(message)
        before = turns[-1] if turns else {}
        if (
            message["role"] == "assistant" == before.get("role")
            and before.get("tool_calls")
            and message.get("tool_calls")
        ):
            turns[-1] = _joined(before, message)
        else:
            turns.append(message)
    return turns


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what the library has no word for: developers, and refusals, which are what was said."""
    content = message.get("content") or (message.get("refusal") if message["role"] == "assistant" else None)
    if isinstance(content, list):
        content = [
            {"type": "text", "text": part["refusal"]} if part.get("type") == "refusal" else part for part in content
        ]
    role = "system" if message["role"] == "developer" else message["role"]
    return {**message, "role": role} | ({"content": content} if content else {})


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two messages of one turn of the assistant."""
    joined = {**first, "tool_calls": [*first["tool_calls"], *second["tool_calls"]]}
    for name in ("content", "reasoning_content"):
        texts = [message[name] for message in (first, second) if message.get(name)]
        if texts:
            joined[name] = texts[0] if len(texts) == 1 else "".join(map(_text, texts))
    return joined


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
