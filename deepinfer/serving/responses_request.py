"""The body of a Responses request, checked field by field, in the terms of Chat Completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.chat_ask import ChatAsk, check_continued, function_tool
from deepinfer.serving.chat_names import schema_notices
from deepinfer.serving.extra_sampling import EXTRA_SAMPLING, ROUTING, extra_sampling, routing
from deepinfer.serving.fields import FieldError, check_inner, check_names, field, json_object, kind_of, needed
from deepinfer.serving.responses_items import Turns
from deepinfer.serving.thinking import is_forced

if TYPE_CHECKING:
    from collections.abc import Sequence

_USED = (
    "model", "input", "instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "include", "stream", "store",
    "background", "previous_response_id", "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls",
    *EXTRA_SAMPLING, *ROUTING,
)  # fmt: skip
HINTS = (
    "metadata", "user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "stream_options",
)  # fmt: skip  # told back or kept, and without effect on the answer, as the API defines them
_UNBUILT: dict[str, tuple[Any, str]] = {
    "truncation": ("disabled", "a prompt is never cut; it is refused where it does not fit"),
    "conversation": (None, "send previous_response_id, or the items themselves"),
    "prompt": (None, "there are no stored prompts; send instructions and input"),
    "max_tool_calls": (None, "it limits built-in tools, and there are none"),
    "moderation": (None, "there is no moderation"),
    "context_management": ([], "a context is never compacted"),
    "background_options": (None, "background runs start at once"),
    "access_programs": (None, "there are none"),
    "image": (None, "only text is made"),
}
_INCLUDABLE = ("message.output_text.logprobs", "reasoning.encrypted_content")
_EFFORTS = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


class ResponsesAsk(msgspec.Struct, frozen=True, kw_only=True):
    """`items` are the request's own input as a list; those of the responses before it come from the store."""

    body: dict[str, Any]
    model: str | None
    items: list[dict[str, Any]]
    instructions: str | None
    previous_response_id: str | None
    store: bool
    background: bool
    stream: bool
    logprobs: bool

    def chat(self, earlier: Sequence[tuple[str, Sequence[dict[str, Any]]]] = ()) -> ChatAsk:
        """The whole conversation: instructions, items of earlier responses (pairs of name and items), and those of this one."""
        turns = Turns()
        if self.instructions:
            turns.messages.append({"role": "system", "content": self.instructions})
        for where, items in earlier:
            turns.add(items, where)
        turns.add(self.items)
        return _chat(self, turns.end())


def read_responses(body: bytes) -> ResponsesAsk:
    """Raises FieldError with the first thing that is wrong, by name."""
    asked = json_object(body)
    check_names(asked, used=_USED, hints=HINTS, unbuilt=_UNBUILT)
    for name in field(asked, "include", list[str], default=[]):
        if name not in _INCLUDABLE:
            why = f"include={name!r:.60} is not supported: there are {', '.join(_INCLUDABLE)}"
            raise FieldError(why, param="include")
    store, background = field(asked, "store", bool, default=True), field(asked, "background", bool, default=False)
    stream = field(asked, "stream", bool, default=False)
    if background and not store:
        raise FieldError("background=true needs store=true: nobody could fetch the answer", param="background")
    if background and stream:
        why = "background=true with stream=true is not supported: stream without background, or poll GET /v1/responses/{id}"
        raise FieldError(why, param="background", code="unsupported_parameter")
    _check_metadata(asked.get("metadata"))
    return ResponsesAsk(
        body=asked,
        model=field(asked, "model", str),
        items=_items(asked),
        instructions=field(asked, "instructions", str),
        previous_response_id=field(asked, "previous_response_id", str),
        store=store,
        background=background,
        stream=stream,
        logprobs=_INCLUDABLE[0] in (asked.get("include") or ()),
    )


def _items(asked: dict[str, Any]) -> list[dict[str, Any]]:
    value = asked.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if value is None and asked.get("previous_response_id") is None:
        raise FieldError(
            "input is missing: give a text or a list of items", param="input", code="missing_required_parameter"
        )
    if value is not None and not isinstance(value, list):
        raise FieldError(f"input is {kind_of(value)}: give a text or a list of items", param="input")
    if not value and asked.get("previous_response_id") is None:
        raise FieldError("input is an empty list: give a text or at least one item", param="input")
    return list(value or ())


def _chat(ask: ResponsesAsk, messages: list[dict[str, Any]]) -> ChatAsk:
    body = ask.body
    thinking, effort = _reasoning(body)
    top = field(body, "top_logprobs", int, default=0)
    if top and not ask.logprobs:
        why = f'top_logprobs={top} needs include=["{_INCLUDABLE[0]}"]: without it no log probabilities are told'
        raise FieldError(why, param="top_logprobs")
    if not 0 <= top <= 20:
        raise FieldError(f"top_logprobs={top}: it is a number from 0 to 20", param="top_logprobs")
    choice = _tool_choice(body.get("tool_choice"))
    if thinking and is_forced(choice):
        why = 'a call that tool_choice asks for is made without thinking: say reasoning={"effort": "none"}, or choose "auto"'
        raise FieldError(why, param="tool_choice")
    sampling = extra_sampling(body, ("temperature", "top_p", *EXTRA_SAMPLING))
    if ask.logprobs:
        sampling["logprobs"] = top
    max_tokens = field(body, "max_output_tokens", int)
    if max_tokens is not None and max_tokens < 1:
        raise FieldError(f"max_output_tokens={max_tokens}: an answer has at least one token", param="max_output_tokens")
    tools = _tools(body)
    check_continued(messages, tools, "input")
    response_format, notices = _format(body)
    return ChatAsk(
        model=ask.model,
        messages=messages,
        place="input",
        stream=ask.stream,
        max_tokens=max_tokens,
        sampling=sampling,
        thinking=thinking,
        reasoning_effort=effort,
        tools=tools or None,
        tool_choice=choice,
        response_format=response_format,
        form="text.format" if response_format else None,
        parallel_tool_calls=field(body, "parallel_tool_calls", bool, default=True),
        notices=(*notices, *_of_include(body)),
        **routing(body),
    )


def _of_include(body: dict[str, Any]) -> tuple[str, ...]:
    if _INCLUDABLE[1] not in (body.get("include") or ()):
        return ()
    return (f"include={_INCLUDABLE[1]} has no effect: thinking is told in full, as reasoning_text of its item",)


def _reasoning(body: dict[str, Any]) -> tuple[bool | None, str | None]:
    """(thinking or None for the service's default, effort or None)."""
    asked = field(body, "reasoning", dict[str, Any], default={})
    unbuilt = {
        name: (None, "thinking is told in full, as reasoning_text") for name in ("encrypted_content", "context", "mode")
    }
    check_names(asked, used=("effort",), hints=("summary", "generate_summary"), unbuilt=unbuilt, where="reasoning.")
    effort = asked.get("effort")
    if effort is None:
        return None, None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise FieldError(f"reasoning.effort={effort!r:.60}: there are {', '.join(_EFFORTS)}", param="reasoning.effort")
    return effort != "none", _EFFORTS[effort]


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for number, tool in enumerate(field(body, "tools", list[dict[str, Any]], default=[])):
        place = f"tools[{number}]."
        if tool.get("type") != "function":
            why = f"{place}type={tool.get('type')!r:.60} is not supported: there are functions only, which the client runs"
            raise FieldError(why, param=f"{place}type", code="unsupported_tool")
        unbuilt = {"defer_loading": (False, "tools are told at once")}
        check_names(tool, used=("type", "name", "description", "parameters", "strict"), unbuilt=unbuilt, where=place)
        name, description = needed(tool, "name", str, where=place), field(tool, "description", str, where=place)
        parameters = field(tool, "parameters", dict[str, Any], where=place)
        tools.append(function_tool(name, description, parameters, field(tool, "strict", bool, where=place)))
    return tools


def _tool_choice(choice: Any) -> Any:
    if choice is None or (isinstance(choice, str) and choice in ("auto", "none", "required")):
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        check_inner(choice, ("type", "name"), "tool_choice")
        return {"type": "function", "function": {"name": choice["name"]}}
    form = '{"type": "function", "name": "…"}'
    why = f"tool_choice={choice!r:.100} is not supported: there are 'auto', 'none', 'required' and {form}"
    raise FieldError(why, param="tool_choice")


def _format(body: dict[str, Any]) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """(response_format of Chat Completions, notices)."""
    text = field(body, "text", dict[str, Any], default={})
    unbuilt: dict[str, tuple[Any, str]] = {"verbosity": ("medium", "say it in the prompt")}
    check_names(text, used=("format",), unbuilt=unbuilt, where="text.")
    wanted = field(text, "format", dict[str, Any], where="text.")
    if wanted is None:
        return None, ()
    if wanted.get("type") == "json_schema":
        schema = needed(wanted, "schema", dict[str, Any], where="text.format.")
        notices = schema_notices({name: one for name, one in wanted.items() if name != "type"}, "text.format")
        form = {"name": wanted.get("name") or "answer", "schema": schema}
        return {"type": "json_schema", "json_schema": form}, tuple(notices)
    if wanted.get("type") in ("text", "json_object"):
        check_inner(wanted, ("type",), "text.format")
        return (None if wanted["type"] == "text" else wanted), ()
    why = f"text.format.type={wanted.get('type')!r:.60} is not supported: there are text, json_object and json_schema"
    raise FieldError(why, param="text.format.type")


def _check_metadata(value: Any) -> None:
    if value is None:
        return
    texts = field({"metadata": value}, "metadata", dict[str, str])
    if len(texts) > 16 or any(len(key) > 64 or len(text) > 512 for key, text in texts.items()):
        raise FieldError("metadata holds at most 16 texts of 512 characters, under keys of 64", param="metadata")
