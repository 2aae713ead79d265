"""What is wrong with a request, as the error that its client reads: one way for all dialects."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deepinfer.sampling.params import ParamsError
from deepinfer.serving.chat_history import ChatError
from deepinfer.serving.fields import FieldError
from deepinfer.serving.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.completion_request import CompletionCall

_OF_GRAMMAR = ("invalid_grammar", "grammar_too_large")
_OF_TOOLS = re.compile(r"(grammar: )?(parameters of the tool|tool|the tool)")  # what such a sentence begins with
_MAX_PARAM = 200  # characters; an unknown field may have any name


@contextmanager
def refusals() -> Iterator[None]:
    """FieldError and ChatError as ApiError 400 with the place."""
    try:
        yield
    except FieldError as error:
        raise ApiError(400, str(error), param=_cut(error.param), code=error.code) from error
    except ChatError as error:
        param = _cut(error.param or _named(str(error)))
        raise ApiError(400, str(error), param=param, code="invalid_value") from error


@contextmanager
def form_refusals(ask: ChatAsk | CompletionCall) -> Iterator[None]:
    """What the engine says against a grammar, with the field of the body that asked for it."""
    try:
        yield
    except ApiError as error:
        tools = "tools" if getattr(ask, "tools", None) else None
        if error.status == 400 and error.param is None and _is_of_grammar(error) and (ask.form or tools):
            error.param = tools if _OF_TOOLS.match(error.message) or ask.form is None else ask.form
            error.code = error.code or _OF_GRAMMAR[0]
        raise


def _is_of_grammar(error: ApiError) -> bool:
    """Parameters were checked before the engine saw them: what it then refuses as ParamsError is the grammar."""
    return error.code in _OF_GRAMMAR or isinstance(error.__cause__, ParamsError)


def _cut(param: str | None) -> str | None:
    return param and param[:_MAX_PARAM]


def _named(message: str) -> str | None:
    """The field that a sentence of the library begins with: "Invalid temperature value, …"."""
    found = re.match(r"Invalid '?([a-z_]+[a-z_\[\].0-9]*)'?\b", message)
    return found[1] if found else None
