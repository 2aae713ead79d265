"""The response object of the Responses API: what was asked is told back, what was used is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.reading import AnswerReader
    from deepinfer.serving.responses_request import ResponsesAsk

_AS_ASKED = (
    "instructions",
    "max_output_tokens",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)


def as_told(response: dict[str, Any], ask: ResponsesAsk, prompt: ChatPrompt) -> dict[str, Any]:
    """The library's response with the request's own settings; sampling as it was in the end."""
    body, params = ask.body, prompt.params
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    thinking = prompt.request.conversation.thinking_mode
    settings = {name: body.get(name) for name in _AS_ASKED} | {
        "background": ask.background,
        "completed_at": response["completed_at"] if response["status"] == "completed" else None,
        "frequency_penalty": params.frequency_penalty,
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": prompt.parallel_tool_calls,
        "presence_penalty": params.presence_penalty,
        "previous_response_id": ask.previous_response_id,
        "reasoning": {
            "effort": prompt.request.conversation.reasoning_effort if thinking else "none",
            "summary": reasoning.get("summary"),
        },
        "store": ask.store,
        "temperature": params.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity")},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in body.get("tools") or ()],
        "top_logprobs": body.get("top_logprobs") or 0,
        "top_p": params.top_p,
    }
    return response | settings


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    return {"description": None, "parameters": None, "strict": None} | tool


def usage(reader: AnswerReader, num_prompt_tokens: int) -> dict[str, Any]:
    """What the answer has cost, in tokens. Cached ones are among the input, those of thinking among the output."""
    return {
        "input_tokens": num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": reader.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reader.num_tokens,
        "output_tokens_details": {"reasoning_tokens": reader.num_reasoning_tokens},
        "total_tokens": num_prompt_tokens + reader.num_tokens,
    }
