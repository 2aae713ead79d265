"""What /openapi.json says of Messages: the fields that are read. `messages_request.py` is what checks them."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_OBJECT: dict[str, Any] = {"type": "object"}
_BLOCKS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "required": ["type"], "properties": {"type": _TEXT}},
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"anyOf": [_TEXT, _BLOCKS]}},
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {"name": _TEXT, "description": _TEXT, "input_schema": _OBJECT, "strict": {"type": "boolean"}},
}
_PROMPT: dict[str, Any] = {
    "model": _TEXT,
    "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
    "system": {"anyOf": [_TEXT, _BLOCKS]},
    "tools": {"type": "array", "items": _TOOL},
    "tool_choice": {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}, "name": _TEXT},
    },
    "thinking": {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"enum": ["enabled", "adaptive", "disabled"]}, "budget_tokens": {"type": "integer"}},
    },
    "output_config": {"type": "object", "properties": {"effort": _TEXT, "format": _OBJECT}},
}
_SAMPLING: dict[str, Any] = {
    "max_tokens": {"type": "integer", "minimum": 1},
    "stop_sequences": {"type": "array", "items": _TEXT},
    "stream": {"type": "boolean"},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number"},
    "top_k": {"type": "integer", "minimum": 0},
    "seed": {"type": "integer"},
    "metadata": _OBJECT,
}


def _body(properties: dict[str, Any], required: list[str], summary: str) -> dict[str, Any]:
    schema = {"type": "object", "required": required, "properties": properties}
    return {"summary": summary, "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


MESSAGES = _body(_PROMPT | _SAMPLING, ["max_tokens", "messages"], "Answer a conversation (Anthropic's Messages)")
COUNT_TOKENS = _body(_PROMPT, ["messages"], "Count the tokens of a conversation as it would be rendered")
