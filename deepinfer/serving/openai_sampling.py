"""Sampling parameters of /v1/chat/completions and /v1/completions: every field takes effect, or is refused by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from deepinfer.serving.fields import FieldError
from deepinfer.structured import AnyGrammar, Choice, Ebnf, JsonObject, JsonSchema, Regex

if TYPE_CHECKING:
    from deepinfer.serving.openai_body import Body

_AS_THEY_ARE = (
    "min_tokens", "temperature", "top_p", "min_p", "n", "seed", "ignore_eos", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip
_ID = re.compile("0|[1-9][0-9]{0,18}")
_LISTS = ("stop", "stop_token_ids", "bad_words")


def sampling_of(body: Body) -> dict[str, Any]:
    """Fields of SamplingParams that the body names; their values are checked with the others. Raises FieldError."""
    found: dict[str, Any] = {name: getattr(body, name) for name in _AS_THEY_ARE}
    for name in _LISTS:
        value = getattr(body, name)
        found[name] = tuple(value) if isinstance(value, list) else value
    found["top_k"] = 0 if body.top_k == -1 else body.top_k  # both say: every token
    found["include_stop_str"] = body.include_stop_str_in_output
    found["logit_bias"] = None if body.logit_bias is None else token_bias(body.logit_bias)
    found["grammar"] = grammar_of(body)
    return {name: value for name, value in found.items() if value is not None}


def token_bias(bias: dict[str, float]) -> dict[int, float]:
    """`logit_bias` by token ids. Raises FieldError for a key that is none."""
    odd = next((key for key in bias if not is_token_id(key)), None)
    if odd is not None:
        raise FieldError(f'logit_bias names {odd!r:.40}: its keys are token ids, such as "42"', param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def is_token_id(key: str) -> bool:
    """Whether a text is a number as JSON writes it: nothing before its digits, and few enough of them to be an id."""
    return _ID.fullmatch(key) is not None


def grammar_of(body: Body) -> AnyGrammar | None:
    """What `structured_outputs` or one of the guided_* fields asks for. Raises FieldError where that is two things."""
    return next(iter(_asked_forms(body).values()), None)


def form_of(body: Body) -> str | None:
    """The name of the field that `grammar_of` reads."""
    return next(iter(_asked_forms(body)), None)


def _asked_forms(body: Body) -> dict[str, AnyGrammar]:
    asked: dict[str, AnyGrammar] = {}
    forms = body.structured_outputs
    for where, schema, regex, choice, grammar in (
        ("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar),
        ("structured_outputs.", *((forms.json, forms.regex, forms.choice, forms.grammar) if forms else (None,) * 4)),
    ):
        asked |= {f"{where}json": JsonSchema(schema)} if schema is not None else {}
        asked |= {f"{where}regex": Regex(regex)} if regex is not None else {}
        asked |= {f"{where}choice": Choice(tuple(choice))} if choice is not None else {}
        asked |= {f"{where}grammar": Ebnf(grammar)} if grammar is not None else {}
    if forms is not None and forms.json_object:
        asked["structured_outputs.json_object"] = JsonObject()
    if len(asked) > 1:
        names = list(asked)
        raise FieldError(f"{' and '.join(names)} are all given: an answer has one form", param=names[1])
    return asked
