"""The body of /v1/completions as jobs for the engine, one for each of its prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.sampling.params import find_problems
from deepinfer.serving.chat_job import TOO_LONG, check_length, check_sampling, room_for, same_answers
from deepinfer.serving.chat_request import stream_options
from deepinfer.serving.fields import FieldError
from deepinfer.serving.jobs import Desk, Job, is_ids
from deepinfer.serving.openai_body import CompletionBody, StreamOptions, read_completion
from deepinfer.serving.openai_sampling import form_of, sampling_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from deepinfer.interfaces import SamplingParams

DEFAULT_MAX_TOKENS = 16  # OpenAI's, where neither the body nor the plan says anything


class CompletionCall(msgspec.Struct, frozen=True, kw_only=True):
    """`echoes`: of each prompt, the text that comes before its answers and how many of its tokens that is."""

    jobs: list[Job]
    echoes: list[tuple[str, int]]
    notices: tuple[str, ...]
    model: str | None
    stream: bool
    stream_options: StreamOptions
    logprobs: int | None
    form: str | None  # the field that asks for a form of the answers
    token_ids: bool  # each choice also tells the ids of its tokens
    cache_salt: str
    priority: int


def completion_call(
    data: bytes, desk: Desk, defaults: SamplingParams, *, asked: Collection[str], max_answers: int
) -> CompletionCall:
    """Raises FieldError with the place of what is wrong."""
    body = read_completion(data)
    if body.suffix:
        why = "this model was not trained to fill in the middle: put the whole text into prompt"
        raise FieldError(f"suffix is not supported: {why}", param="suffix", code="unsupported_parameter")
    prompts = _prompts(body.prompt)
    params = _params(body, defaults, asked)
    check_sampling(find_problems(params, desk.vocab_size), form_of(body))
    if len(prompts) * params.n > max_answers:
        found = f"{len(prompts)} prompts with n={params.n} are {len(prompts) * params.n} answers"
        raise FieldError(f"{found}, and {max_answers} may be asked at once (serving.max_answers)", param="prompt")
    jobs, echoes, notices = [], [], []
    for number, prompt in enumerate(prompts):
        job = _job(
            desk, prompt, params, number if len(prompts) > 1 else None, with_bos=body.add_special_tokens is not False
        )
        fitting, notice = room_for(params, params.max_tokens, len(job.prompt_ids), desk.max_model_len)
        jobs.append(msgspec.structs.replace(job, params=fitting))
        echoes.append(_echo(desk, prompt, job) if body.echo else ("", 0))
        notices += [one for one in notice if one not in notices]
    return CompletionCall(
        jobs=jobs,
        echoes=echoes,
        notices=(*notices, *same_answers(params)),
        model=body.model,
        stream=bool(body.stream),
        stream_options=stream_options(body.stream, body.stream_options),
        logprobs=body.logprobs,
        form=form_of(body),
        token_ids=bool(body.return_token_ids),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
    )


def _prompts(prompt: Any) -> list[Any]:
    """Each is a text or a list of token ids."""
    one = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if not one:
        raise FieldError("prompt is empty: give a text, a list of token ids, or a list of such prompts", param="prompt")
    for number, each in enumerate(one):
        if not (isinstance(each, str) or is_ids(each)):
            what = f"prompt[{number}]"
            raise FieldError(f"{what}={each!r:.40} is neither a text nor a list of token ids", param=what)
    return one


def _params(body: CompletionBody, defaults: SamplingParams, asked: Collection[str]) -> SamplingParams:
    fields = sampling_of(body)
    if body.max_tokens is not None:
        fields["max_tokens"] = body.max_tokens
    elif "max_tokens" not in asked:
        fields["max_tokens"] = max(DEFAULT_MAX_TOKENS, body.min_tokens or 0)
    if body.skip_special_tokens is not None:
        fields["skip_special_tokens"] = body.skip_special_tokens
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
        if body.echo:
            fields["prompt_logprobs"] = body.logprobs
    return msgspec.structs.replace(defaults, **fields)


def _job(desk: Desk, prompt: Any, params: SamplingParams, number: int | None, *, with_bos: bool) -> Job:
    where, param = ("", "prompt") if number is None else (f"prompt {number}: ", f"prompt[{number}]")
    least = desk.tokenizer.fewest_tokens(prompt) if isinstance(prompt, str) and desk.tokenizer is not None else 0
    if least > desk.max_model_len:
        found = f"the prompt has at least {least:,} tokens, and the context of this model is {desk.max_model_len:,}"
        raise FieldError(f"{where}{found}: shorten it", param=param, code=TOO_LONG)
    try:
        if isinstance(prompt, str) and not with_bos and desk.tokenizer is not None:
            prompt = desk.ids_of_text(prompt)
    except ValueError as error:
        raise FieldError(f"{where}{error}", param=param) from error
    job = desk.text(prompt, params)
    check_length(len(job.prompt_ids), params, desk.max_model_len, param)
    if job.error:
        raise FieldError(where + job.error, param=param)
    return job


def _echo(desk: Desk, prompt: Any, job: Job) -> tuple[str, int]:
    """The prompt's text, and how many of its tokens make it: not the one that begins every text."""
    if not isinstance(prompt, str):
        tokenizer = desk.tokenizer
        assert tokenizer is not None, "whoever has texts has a tokenizer"
        return tokenizer.decode(job.prompt_ids, skip_special_tokens=False), len(job.prompt_ids)
    begun = job.prompt_ids[0] == desk.bos_token_id
    return prompt, len(job.prompt_ids) - begun
