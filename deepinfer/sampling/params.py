"""Checks of what a request asks for: every problem at once, each as asked → found → why → what to type.

Every range is written as `not (lo <= x <= hi)`, so that NaN fails it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.grammar.problems import request_problems
from deepinfer.structured import AnyGrammar, Choice, Ebnf, JsonSchema, Regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GREEDY_BELOW = 1e-5  # temperatures under this are greedy: dividing by less would overflow a float32
MAX_LOGPROBS = 128
MAX_ANSWERS = 128
SEED_LIMIT = 2**63
MAX_COUNT = 2**31 - 1

_RANGES = {
    "temperature": (0.0, 100.0, f"0 is greedy, and so is anything below {GREEDY_BELOW}"),
    "min_p": (0.0, 1.0, "it is a share of the best token's probability; 0 turns it off"),
    "presence_penalty": (-2.0, 2.0, "0 turns it off"),
    "frequency_penalty": (-2.0, 2.0, "0 turns it off"),
}
_COUNTS = {
    "max_tokens": (1, MAX_COUNT, "an answer has at least one token"),
    "min_tokens": (0, MAX_COUNT, "0 turns it off"),
    "top_k": (0, MAX_COUNT, "0 keeps every token"),
    "n": (1, MAX_ANSWERS, "it is a number of answers"),
}
_TEXTS = {"stop": 256, "bad_words": 1000}  # how many of them; each is looked for at every token
MAX_TEXT_BYTES = 1000
_FLAGS = ("include_stop_str", "ignore_eos", "skip_special_tokens")
_LOGIT_BIAS_LIMIT = 100.0


class ParamsError(ValueError):
    """A request's parameters are wrong. `problems` lists every fault as one sentence."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def validate(
    params: SamplingParams, vocab_size: int, max_model_len: int | None = None, prompt_tokens: int | None = None
) -> None:
    """Raise `ParamsError` with all problems of `params`.

    With `max_model_len` and `prompt_tokens` (both in tokens) also checks that the prompt and `min_tokens` fit. A
    `max_tokens` beyond the room that is left is no problem: the answer then ends with "length" where the room ends.
    """
    problems = find_problems(params, vocab_size, max_model_len, prompt_tokens)
    if problems:
        raise ParamsError(problems)


def find_problems(
    params: SamplingParams, vocab_size: int, max_model_len: int | None = None, prompt_tokens: int | None = None
) -> list[str]:
    """What is wrong with `params`, one sentence each; an empty list when nothing is."""
    if not isinstance(params, SamplingParams):
        return [f"params is a {type(params).__name__}: give a SamplingParams, such as SamplingParams(max_tokens=64)"]
    problems = [*_numbers(params), *_texts(params), *_token_ids(params, vocab_size), *_choices(params)]
    problems += request_problems(params, vocab_size)
    if not problems and max_model_len is not None and prompt_tokens is not None:
        problems += _length(params, max_model_len, prompt_tokens)
    return problems


def from_config(sampling: msgspec.Struct) -> SamplingParams:
    """The configuration's `sampling` group as the parameters of a request that says nothing itself."""
    names = {field.name for field in msgspec.structs.fields(SamplingParams)}
    values = {name: getattr(sampling, name) for name in sampling.__struct_fields__ if name in names}
    values["logit_bias"] = values.get("logit_bias") or None
    return SamplingParams(**values, grammar=_default_grammar(sampling))


def _default_grammar(sampling: msgspec.Struct) -> AnyGrammar | None:
    """What every answer must look like, of the keys json_schema, regex, ebnf and choice; a plan has at most one of them."""
    kinds = {"json_schema": JsonSchema, "regex": Regex, "ebnf": Ebnf, "choice": Choice}
    return next((kind(value) for name, kind in kinds.items() if (value := getattr(sampling, name, None))), None)


def asked_sampling(overrides: Iterable[str]) -> frozenset[str]:
    """Fields of the `sampling` group that overrides, written as on the command line, set to a value of somebody's choice."""
    pairs = [override.lstrip("+").partition("=")[::2] for override in overrides]
    keys = {key.removeprefix("sampling.") for key, value in pairs if key.startswith("sampling.") and value != "auto"}
    return frozenset(keys | {"temperature"} if ("sampling", "greedy") in pairs else keys)


def is_broken(text: str) -> bool:
    """Whether a str holds half a surrogate pair, so that no bytes stand for it."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbers(params: SamplingParams) -> Iterator[str]:
    for name, (low, high, why) in _RANGES.items():
        value = getattr(params, name)
        if not (_is_number(value) and low <= value <= high):
            yield f"{name}={value!r} is not a number from {low:g} to {high:g}: {why}"
    for name, (low, high, why) in _COUNTS.items():
        value = getattr(params, name)
        if not (_is_int(value) and low <= value <= high):
            yield f"{name}={value!r} is not a whole number from {low} to {high}: {why}"
    if not (_is_number(params.top_p) and 0.0 < params.top_p <= 1.0):
        yield f"top_p={params.top_p!r} is not above 0 and at most 1: 1 turns it off; for greedy write temperature=0"
    if not (_is_number(params.repetition_penalty) and 0.01 <= params.repetition_penalty <= 100.0):
        yield f"repetition_penalty={params.repetition_penalty!r} is not from 0.01 to 100: 1 turns it off"
    seed = params.seed
    if seed is not None and not (_is_int(seed) and 0 <= seed < SEED_LIMIT):
        yield f"seed={seed!r} is not a whole number from 0 to 2**63 - 1: leave it out to have one drawn"
    if _is_int(params.min_tokens) and _is_int(params.max_tokens) and params.min_tokens > params.max_tokens:
        yield f"min_tokens={params.min_tokens} is more than max_tokens={params.max_tokens}: lower it or raise the other"


def _texts(params: SamplingParams) -> Iterator[str]:
    for name, most in _TEXTS.items():
        value = getattr(params, name)
        if not isinstance(value, tuple | list):
            yield f"{name}={value!r} is a {type(value).__name__}, not a list of texts: write {name}=({value!r},)"
            continue
        if len(value) > most:
            yield f"{name} holds {len(value)} texts: each is looked for at every token, so there may be {most}"
            continue
        for text in value:
            if not (isinstance(text, str) and text):
                yield f"{name} holds {text!r}: each entry is a text of at least one character"
            elif is_broken(text):
                yield f"{name} holds {text!r:.80}, half a surrogate pair, which is no text: mend its decoding"
            elif len(text.encode()) > MAX_TEXT_BYTES:
                yield f"{name} holds {text!r:.40}… of {len(text.encode())} bytes: each may have {MAX_TEXT_BYTES}"


def _token_ids(params: SamplingParams, vocab_size: int) -> Iterator[str]:
    known = f"the vocabulary has ids 0 to {vocab_size - 1}"
    stops = params.stop_token_ids
    if isinstance(stops, tuple | list):
        for token_id in stops:
            if not (_is_int(token_id) and 0 <= token_id < vocab_size):
                yield f"stop_token_ids holds {token_id!r}: {known}"
    else:
        yield f"stop_token_ids={stops!r} is a {type(stops).__name__}, not a list: write stop_token_ids=({stops!r},)"
    bias = params.logit_bias
    if bias is None:
        return
    if not isinstance(bias, dict):
        yield f"logit_bias={bias!r} is a {type(bias).__name__}, not a map of token id to bias"
        return
    for token_id, value in bias.items():
        if not (_is_int(token_id) and 0 <= token_id < vocab_size):
            yield f"logit_bias names token {token_id!r}: {known}"
        if not (_is_number(value) and math.fabs(value) <= _LOGIT_BIAS_LIMIT):
            yield f"logit_bias[{token_id!r}]={value!r} is not a number from -100 to 100: 100 forces, -100 bans a token"


def _choices(params: SamplingParams) -> Iterator[str]:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not (_is_int(value) and 0 <= value <= MAX_LOGPROBS):
            yield (
                f"{name}={value!r} is not a whole number from 0 to {MAX_LOGPROBS}: "
                "it counts the best tokens to report at each position"
            )
    for name in _FLAGS:
        if not isinstance(getattr(params, name), bool):
            yield f"{name}={getattr(params, name)!r} is neither True nor False"
    if params.logprobs_mode not in ("raw", "processed"):
        yield f"logprobs_mode={params.logprobs_mode!r} is unknown: write 'raw' or 'processed'"


def _length(params: SamplingParams, max_model_len: int, prompt_tokens: int) -> Iterator[str]:
    needed = prompt_tokens + max(1, params.min_tokens)
    if needed > max_model_len:
        yield (
            f"the prompt has {prompt_tokens} tokens and the answer at least {max(1, params.min_tokens)} "
            f"(max_tokens={params.max_tokens}), but prompt and answer together may have {max_model_len}: "
            "shorten the prompt, lower min_tokens or raise model.max_model_len"
        )
