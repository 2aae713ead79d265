"""Messages of Anthropic's API to messages of Chat Completions: blocks become text, thinking, calls and results of calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from deepinfer.serving.chat_ask import function_call
from deepinfer.serving.fields import FieldError, check_inner, field, kind_of, needed

if TYPE_CHECKING:
    from collections.abc import Sequence

_BETWEEN = "\n\n"  # blocks of one message, as DeepSeek's library joins them
FAILED = "Error: "  # stands before the result of a call that went wrong (is_error)
_HINTS = ("cache_control",)
_CITATIONS: dict[str, tuple[Any, str]] = {"citations": ([], "answers have no sources")}
_NO_TEXT = {"image": "an image", "document": "a document", "search_result": "a search result"}


def system_text(system: Any) -> str | None:
    """The system prompt, a str or text blocks."""
    if system is None or isinstance(system, str):
        return system or None
    return _text_of(system, "system") or None


def chat_messages(messages: Any) -> list[dict[str, Any]]:
    """The conversation. Raises FieldError naming the message and the block that cannot be read."""
    if not isinstance(messages, list) or not messages:
        why = f'messages is {kind_of(messages)}: give a list such as [{{"role": "user", "content": "…"}}]'
        raise FieldError(
            why if messages != [] else "messages is empty: at least one message is needed", param="messages"
        )
    turns: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        place = f"messages.{number}"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            raise FieldError(f"{place}.role={role!r:.60}: there are user and assistant", param=f"{place}.role")
        check_inner(message, ("role", "content"), place)
        read = {"user": _user, "assistant": _assistant, "system": _system}[role]
        turns += read(message.get("content"), f"{place}.content")
    _check_results(messages)
    return turns


def _system(content: Any, place: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": _text_of(content, place)}]


def _user(content: Any, place: str) -> list[dict[str, Any]]:
    """Results of calls first, each a message of its own; then what the user says."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    results: list[dict[str, Any]] = []
    texts = []
    for number, block in enumerate(_blocks(content, place)):
        if block.get("type") == "tool_result":
            results.append(_result(block, f"{place}.{number}"))
        else:
            texts.append(_text(block, f"{place}.{number}"))
    return [*results, {"role": "user", "content": _BETWEEN.join(texts)}] if texts or not results else results


def _result(block: dict[str, Any], place: str) -> dict[str, Any]:
    check_inner(block, ("type", "tool_use_id", "content", "is_error"), place, hints=_HINTS)
    call_id = needed(block, "tool_use_id", str, where=f"{place}.")
    content = block.get("content")
    text = _text_of("" if content is None else content, f"{place}.content")
    if field(block, "is_error", bool, where=f"{place}.", default=False):
        text = FAILED + text  # the format has no other place for it
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _assistant(content: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "assistant", "content": content}]
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(_blocks(content, place)):
        where = f"{place}.{number}"
        kind = block.get("type")
        if kind == "thinking":
            check_inner(block, ("type", "thinking"), where, hints=("signature", *_HINTS))
            thoughts.append(str(needed(block, "thinking", str, where=f"{where}.")))
        elif kind == "tool_use":
            callers: dict[str, tuple[Any, str]] = {"caller": ({"type": "direct"}, "only the model calls tools")}
            check_inner(block, ("type", "id", "name", "input"), where, hints=_HINTS, unbuilt=callers)
            name, call_id = (needed(block, key, str, where=f"{where}.") for key in ("name", "id"))
            arguments = field(block, "input", dict[str, Any], where=f"{where}.", default={})
            calls.append(function_call(call_id, name, json.dumps(arguments, ensure_ascii=False)))
        else:
            texts.append(_text(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": _BETWEEN.join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _check_results(messages: Sequence[dict[str, Any]]) -> None:
    """Every result answers a call of the message before it, and every call is answered in the message after it."""
    calls: dict[str, str] = {}
    for number, message in enumerate([*messages, {}]):
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        for call_id, place in calls.items():
            if call_id not in answered:
                why = f"{place}: the next message holds no tool_result block with tool_use_id={call_id!r:.60}"
                raise FieldError(why, param=place)
        for position, block in enumerate(blocks):
            if block["type"] == "tool_result" and block["tool_use_id"] not in calls:
                place = f"messages.{number}.content.{position}"
                why = f"{place}: no tool_use block of the message before has the id {block['tool_use_id']!r:.60}"
                raise FieldError(why, param=f"{place}.tool_use_id")
        calls = {
            block["id"]: f"messages.{number}.content.{position}"
            for position, block in enumerate(blocks)
            if block["type"] == "tool_use"
        }


def _blocks(content: Any, place: str) -> list[dict[str, Any]]:
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise FieldError(f"{place} is {kind_of(content)}: give a text or a list of blocks", param=place)
    return content


def _text_of(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    return _BETWEEN.join(_text(block, f"{place}.{number}") for number, block in enumerate(_blocks(content, place)))


def _text(block: dict[str, Any], place: str) -> str:
    kind = block.get("type")
    if kind == "text":
        check_inner(block, ("type", "text"), place, hints=_HINTS, unbuilt=_CITATIONS)
        return str(needed(block, "text", str, where=f"{place}."))
    what = _NO_TEXT.get(str(kind), f"a block of the type {kind!r:.60}")
    raise FieldError(
        f"{place} is {what}: only text is read so far; leave that block out", param=place, code="unsupported_content"
    )
