"""What /openapi.json says of Responses: the fields that are read. `responses_request.py` is what checks them."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_OBJECT: dict[str, Any] = {"type": "object"}
_ID: dict[str, Any] = {"name": "response_id", "in": "path", "required": True, "schema": _TEXT}
_TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"enum": ["function"]},
        "name": _TEXT,
        "description": _TEXT,
        "parameters": _OBJECT,
        "strict": _FLAG,
    },
}
_PROPERTIES: dict[str, Any] = {
    "model": _TEXT,
    "input": {"anyOf": [_TEXT, {"type": "array", "minItems": 1, "items": _OBJECT}]},
    "instructions": _TEXT,
    "previous_response_id": _TEXT,
    "max_output_tokens": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number"},
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "include": {"type": "array", "items": _TEXT},
    "stream": _FLAG,
    "store": _FLAG,
    "background": _FLAG,
    "reasoning": {"type": "object", "properties": {"effort": _TEXT, "summary": _TEXT}},
    "text": {"type": "object", "properties": {"format": _OBJECT, "verbosity": _TEXT}},
    "tools": {"type": "array", "items": _TOOL},
    "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, _OBJECT]},
    "parallel_tool_calls": _FLAG,
    "metadata": {"type": "object", "additionalProperties": _TEXT},
}
RESPONSES: dict[str, Any] = {
    "summary": "Make a response",
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["input"], "properties": _PROPERTIES}}
        },
    },
}
BY_ID: dict[str, Any] = {"parameters": [_ID]}
INPUT_ITEMS: dict[str, Any] = {
    "parameters": [
        _ID,
        {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"]}},
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
        {"name": "after", "in": "query", "schema": _TEXT},
    ]
}
