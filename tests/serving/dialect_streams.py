"""Answers as a dialect tells them: scripted pieces in, the events out, and what a client makes of these."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.answers import Piece

EOS = 1
CALLS, CLOSED = "\n\n<｜DSML｜ calls>\n", "</｜DSML｜ calls>"


def call(name: str, **arguments: str) -> str:
    """A call as the model writes it, all arguments texts."""
    lines = [
        f'<｜DSML｜ parameter name="{key}" string="true">{value}</｜DSML｜ parameter>\n'
        for key, value in arguments.items()
    ]
    return f'<｜DSML｜ invoke name="{name}">\n{"".join(lines)}</｜DSML｜ invoke>\n'


def pieces(
    tokenizer: BpeTokenizer, text: str, size: int, *, reason: str = "stop", cached_tokens: int = 0
) -> Iterator[Piece]:
    """The answer `text`, `size` tokens a piece; an end-of-sequence token where it stops by itself."""
    ids = tokenizer.encode(text) + ([EOS] if reason == "stop" else [])
    cuts = [ids[start : start + size] for start in range(0, len(ids), size)] or [[]]
    for number, cut in enumerate(cuts):
        last = number == len(cuts) - 1
        yield Piece(
            index=0,
            token_ids=cut,
            cached_tokens=None if number else cached_tokens,
            finish_reason=reason if last else None,
        )


def events(sent: bytes) -> list[dict[str, Any]]:
    """The events of a stream, in which every one is named as its type says."""
    found = []
    for block in sent.decode().split("\n\n"):
        if block:
            name, _, data = block.partition("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}", block
            found.append(event)
    return found


def message_of(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a Messages stream adds up to. Asserts that blocks open, grow and close one after another."""
    kinds = [event["type"] for event in told if event["type"] != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    message = json.loads(json.dumps(told[0]["message"]))
    grown: list[str] = []
    is_open = False
    for event in told[1:]:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            is_open = True
            message["content"].append(event["content_block"])
            grown.append("")
        elif event["type"] == "content_block_delta":
            assert is_open and event["index"] == len(message["content"]) - 1
            _grow(message["content"][-1], grown, event["delta"])
        elif event["type"] == "content_block_stop":
            assert is_open and event["index"] == len(message["content"]) - 1
            is_open = False
            if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads(grown[-1])
        elif event["type"] == "message_delta":
            message |= event["delta"] | {key: event[key] for key in ("usage", "notices") if key in event}
    assert not is_open
    return message


def _grow(block: dict[str, Any], grown: list[str], delta: dict[str, Any]) -> None:
    field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(delta["type"])
    if field is None:
        grown[-1] += delta["partial_json"]
    else:
        block[field] += delta[field]


def output_of(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items that a Responses stream adds up to: each done event repeats what its deltas were."""
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    text, opened = "", ""
    for event in told[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not opened and event["output_index"] == len(items)
            text, opened = "", event["item"]["id"]
        elif kind.endswith(".delta"):
            assert event["item_id"] == opened and event["output_index"] == len(items)
            text += event["delta"]
        elif kind.endswith(("_text.done", "arguments.done")):
            assert event["item_id"] == opened and text == event.get("text", event.get("arguments"))
        elif kind == "output_item.done":
            assert event["item"]["id"] == opened
            item = event["item"]
            assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
            items.append(item)
            opened = ""
        else:
            assert kind in ("content_part.added", "content_part.done"), kind
    assert not opened
    assert told[-1]["response"]["output"] == items
    return items
