"""What a body of /v1/chat/completions or /v1/completions may hold, field by field, and which fields nobody can serve.

Beside OpenAI's own fields there are those that vLLM and DeepSeek's API know: sampling parameters, `thinking`, grammars.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from deepinfer.serving.fields import FieldError, check_names, json_object

T = TypeVar("T", bound="Body")
# What an API says changes no text: who asks, where caches are kept, how bills are made.
HINTS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: a last chunk with usage and no choices. `continuous_usage_stats`: usage so far in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # padding against those who watch sizes; TLS in front of this server has its own


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of these forms, under vLLM's names."""

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both paths. None is as if the field were absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: int | list[int] | None = None
    bad_words: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


class Thinking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`adaptive` is `enabled`: how long to think is the model's choice."""

    type: str


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one thing that this format's template can be told, under both names in use."""

    thinking: bool | None = None
    enable_thinking: bool | None = None


class ChatBody(Body, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    thinking: Thinking | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateOptions | None = None


class CompletionBody(Body, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]]  # texts or ids, one prompt or several
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None


_UNBUILT: dict[str, tuple[Any, str]] = {
    "use_beam_search": (False, "answers are sampled"),
    "length_penalty": (1.0, "it belongs to beam search, and answers are sampled"),
    "best_of": (1, "answers are not ranked: ask for n answers and choose"),
    "allowed_token_ids": (None, "say what may be written with structured_outputs, or logit_bias"),
    "prompt_logprobs": (None, "/v1/completions gives them with echo=true and logprobs"),
    "truncate_prompt_tokens": (None, "a prompt is never cut: shorten it"),
}
_UNBUILT_CHAT: dict[str, tuple[Any, str]] = _UNBUILT | {
    "functions": (None, 'give tools: [{"type": "function", "function": {…}}]'),
    "function_call": (None, "give tool_choice"),
    "store": (False, "answers are kept by /v1/responses only"),
    "audio": (None, "answers are text"),
    "modalities": (["text"], "answers are text"),
    "prediction": (None, "drafts are the server's own (speculation=…)"),
    "web_search_options": (None, "this server does not search: give a tool that does"),
    "verbosity": ("medium", "say it in the prompt"),
    "echo": (False, "/v1/completions does that"),
    "include_reasoning": (True, "reasoning is told apart from content, as reasoning_content: leave it unread"),
    "add_generation_prompt": (True, "an answer follows the last message"),
    "skip_special_tokens": (True, "return_token_ids tells the tokens themselves"),
}


def read_chat(data: bytes) -> ChatBody:
    """Raises FieldError for whatever in it nobody would read, or cannot be read."""
    return _read(data, ChatBody, _UNBUILT_CHAT)


def read_completion(data: bytes) -> CompletionBody:
    """As `read_chat`."""
    return _read(data, CompletionBody, _UNBUILT)


def _read(data: bytes, kind: type[T], unbuilt: dict[str, tuple[Any, str]]) -> T:
    body = json_object(data)
    check_names(body, used=kind.__struct_fields__, hints=HINTS, unbuilt=unbuilt)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        missing = re.search(r"missing required field `(\w+)`", text)
        if missing:
            code = "missing_required_parameter"
            raise FieldError(f"{missing[1]} is missing", param=missing[1], code=code) from None
        place = re.search(r" - at `\$\.?([^`]*)`$", text)
        param = place[1] if place else None
        where = f"{param}: " if param else ""
        told = text[: place.start()] if place else text
        raise FieldError(f"{where}{told[:1].lower()}{told[1:]}", param=param) from None
