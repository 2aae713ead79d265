"""The body of /v1/chat/completions as what all dialects ask, and how its answer is to be told."""

from __future__ import annotations

import msgspec

from deepinfer.serving.chat_ask import ChatAsk
from deepinfer.serving.chat_names import check_nested
from deepinfer.serving.fields import FieldError
from deepinfer.serving.openai_body import ChatBody, StreamOptions, read_chat
from deepinfer.serving.openai_sampling import form_of, sampling_of

MAX_TOP_LOGPROBS = 20


class ChatCall(msgspec.Struct, frozen=True, kw_only=True):
    """`top_logprobs` None: no log probabilities; 0: those of the chosen tokens."""

    ask: ChatAsk
    stream_options: StreamOptions
    top_logprobs: int | None
    token_ids: bool  # each choice also tells the ids of its tokens


def chat_call(data: bytes) -> ChatCall:
    """Raises FieldError with the place of what is wrong."""
    body = read_chat(data)
    sampling = sampling_of(body)
    top = _top_logprobs(body)
    if top is not None:
        sampling["logprobs"] = top
    ask = ChatAsk(
        model=body.model,
        messages=body.messages,
        stream=bool(body.stream),
        max_tokens=_max_tokens(body),
        sampling=sampling,
        several=True,
        thinking=_thinking(body),
        reasoning_effort=body.reasoning_effort,
        tools=body.tools,
        tool_choice=body.tool_choice,
        response_format=body.response_format,
        form=form_of(body) or ("response_format" if body.response_format else None),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        notices=check_nested(body),
    )
    return ChatCall(
        ask=ask,
        stream_options=stream_options(body.stream, body.stream_options),
        top_logprobs=top,
        token_ids=bool(body.return_token_ids),
    )


def stream_options(stream: bool | None, options: StreamOptions | None) -> StreamOptions:
    """Raises FieldError where they are given for an answer that is not streamed."""
    if options is not None and not stream:
        raise FieldError("stream_options is given, and stream is not true", param="stream_options")
    return options or StreamOptions()


def _max_tokens(body: ChatBody) -> int | None:
    both = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(both) > 1:
        found = f"max_tokens={body.max_tokens} and max_completion_tokens={body.max_completion_tokens}"
        raise FieldError(f"{found} are two names of one limit: give one of them", param="max_completion_tokens")
    return both.pop() if both else None


def _top_logprobs(body: ChatBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not body.logprobs:
        raise FieldError("top_logprobs is given, and logprobs is not true", param="top_logprobs")
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise FieldError(f"top_logprobs={top} is not from 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs")
    return top or 0 if body.logprobs else None


def _thinking(body: ChatBody) -> bool | None:
    """What the three ways to say it say. Raises FieldError where they disagree."""
    asked: dict[str, bool] = {}
    if body.thinking is not None:
        if body.thinking.type not in ("enabled", "disabled", "adaptive"):
            known = "enabled, disabled or adaptive"
            raise FieldError(f"thinking.type={body.thinking.type!r:.40} is none of {known}", param="thinking.type")
        asked["thinking"] = body.thinking.type != "disabled"
    options = body.chat_template_kwargs
    for name in ("thinking", "enable_thinking"):
        value = getattr(options, name) if options is not None else None
        if value is not None:
            asked[f"chat_template_kwargs.{name}"] = value
    if len(set(asked.values())) > 1:
        raise FieldError(f"{' and '.join(asked)} contradict each other: give one of them", param=list(asked)[-1])
    return next(iter(asked.values()), None)
