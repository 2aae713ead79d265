"""A request of any dialect as a job for the engine. Rules that all dialects share are applied here, once.

- A forced call is made without thinking (serving/thinking.py).
- What a client says of temperature and top_p wins over V4.1's format, whose values are then a notice; else the format wins,
  and nobody who said nothing of them is told.
- max_tokens is cut at the room that the prompt leaves; a prompt is never cut. Without it an answer may have as many tokens as
  DeepSeek's API gives: 8,192, when thinking 65,536, with the effort "max" 131,072; or what the server's plan says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.params import find_problems
from deepinfer.serving.chat_history import ChatError
from deepinfer.serving.fields import FieldError
from deepinfer.serving.jobs import Desk, Job
from deepinfer.serving.thinking import is_forced, thinking_mode

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.codec import ChatPrompt


_PLAIN = {*SamplingParams.__struct_fields__} - {"grammar"}
TOO_LONG = "context_length_exceeded"  # OpenAI's code, which its clients know


def chat_job(ask: ChatAsk, desk: Desk, defaults: SamplingParams, *, asked: Collection[str], thinking: bool) -> Job:
    """The job with its prompt rendered. `asked` are the fields of `defaults` that the operator chose; `thinking` is the
    server's default mode. Raises FieldError or ChatError, both with the place in the request where it is known."""
    chat = rendered(ask, desk, defaults, asked=asked, thinking=thinking)
    num_prompt, most = len(chat.prompt_ids), chat.params.max_tokens
    if ask.max_tokens is None and "max_tokens" not in asked and num_prompt < desk.max_model_len:
        most = chat.request.resolve_max_tokens(num_prompt, desk.max_model_len)
    check_length(num_prompt, chat.params, desk.max_model_len, ask.place)
    params, more = room_for(chat.params, most, num_prompt, desk.max_model_len)
    check_sampling(find_problems(params, desk.vocab_size, desk.max_model_len, num_prompt), ask.form)
    chat = msgspec.structs.replace(chat, params=params, notices=(*chat.notices, *more, *same_answers(params)))
    return Job(prompt_ids=chat.prompt_ids, params=params, chat=chat)


def rendered(
    ask: ChatAsk, desk: Desk, defaults: SamplingParams, *, asked: Collection[str], thinking: bool
) -> ChatPrompt:
    """The prompt, however long it is. Arguments and errors are those of `chat_job`."""
    thinks, notices = thinking_mode(
        ask.thinking, ask.reasoning_effort, default=thinking, forced_call=is_forced(ask.tool_choice)
    )
    params = msgspec.structs.replace(defaults, **_untold(ask), **ask.sampling)
    if ask.max_tokens is not None:
        params = msgspec.structs.replace(params, max_tokens=ask.max_tokens)
    check_sampling(find_problems(params, desk.vocab_size), ask.form)
    try:
        chat = desk.codec.encode(
            ask.messages,
            params,
            asked={*asked, *ask.sampling},
            told=ask.sampling,
            thinking=thinks,
            reasoning_effort=ask.reasoning_effort,
            tools=ask.tools,
            tool_choice=ask.tool_choice,
            response_format=ask.response_format,
        )
    except ChatError as error:
        if error.param is None and str(error).startswith("Invalid json schema"):  # the library's words
            raise ChatError(str(error), param=ask.form or "tools") from error
        raise
    notices = (*ask.notices, *notices, *chat.notices)
    return msgspec.structs.replace(chat, notices=notices, parallel_tool_calls=ask.parallel_tool_calls)


def _untold(ask: ChatAsk) -> dict[str, Any]:
    """What the plan's own sampling may hold and this answer has no place for, as if it were not there."""
    none: dict[str, Any] = {name: None for name in ("logprobs", "prompt_logprobs") if name not in ask.sampling}
    return none if ask.several else none | {"n": 1}


def room_for(
    params: SamplingParams, most: int, num_prompt: int, max_model_len: int
) -> tuple[SamplingParams, tuple[str, ...]]:
    """`params` with max_tokens `most`, or what the prompt leaves of the context and a notice that says so."""
    room = max_model_len - num_prompt
    assert room >= 1, "the length was checked"
    if most <= room:
        return msgspec.structs.replace(params, max_tokens=most), ()
    notice = (
        f"max_tokens={most} becomes {room}: the prompt has {num_prompt} of the {max_model_len} tokens of the context"
    )
    return msgspec.structs.replace(params, max_tokens=room), (notice,)


def check_length(num_prompt: int, params: SamplingParams, max_model_len: int, place: str) -> None:
    """Raise FieldError, of the field `place`, where a prompt of so many tokens leaves no room for the shortest answer."""
    least = max(1, params.min_tokens)
    if num_prompt + least > max_model_len:
        lower = " or lower min_tokens" if least > 1 and num_prompt < max_model_len else ""
        raise FieldError(
            f"the prompt has {num_prompt:,} tokens and its answer at least {least:,}, and the context of this model is "
            f"{max_model_len:,} tokens for both: shorten {place}{lower}",
            param=place,
            code=TOO_LONG,
        )


def same_answers(params: SamplingParams) -> tuple[str, ...]:
    """A notice where several answers are asked for and nothing tells them apart."""
    if params.n == 1 or params.temperature:
        return ()
    return (f"n={params.n} with temperature=0 gives the same answer {params.n} times: give a temperature above 0",)


def check_sampling(problems: Sequence[str], form: str | None = None) -> None:
    """Raise FieldError with all of them; the field is that of the first, `form` where that is about a grammar."""
    if problems:
        found = re.match(r"[a-z_]+", problems[0])
        name = found[0] if found else None
        raise FieldError("; ".join(problems), param=name if name in _PLAIN or form is None else form)
