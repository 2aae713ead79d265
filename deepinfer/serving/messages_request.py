"""The body of a Messages request, checked field by field, in the terms of Chat Completions."""

from __future__ import annotations

from typing import Any

from deepinfer.serving.chat_ask import ChatAsk, check_continued, function_tool
from deepinfer.serving.extra_sampling import EXTRA_SAMPLING, ROUTING, extra_sampling, routing
from deepinfer.serving.fields import FieldError, check_inner, check_names, field, json_object, needed
from deepinfer.serving.messages_blocks import chat_messages, system_text

_ALSO = tuple(name for name in EXTRA_SAMPLING if name != "stop")
_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
_USED = (*_PROMPT, "max_tokens", "stop_sequences", "stream", "temperature", "top_p", *_ALSO, *ROUTING)
HINTS = (
    "metadata",
    "service_tier",
    "cache_control",
)  # without effect on the answer; prefixes are cached without being told
_UNBUILT: dict[str, tuple[Any, str]] = {
    "speed": ("standard", "there is one speed"),
    "container": (None, "there is no code execution"),
    "mcp_servers": ([], "there are functions only, which the client runs"),
    "context_management": ({"edits": []}, "a context is never edited"),
    "diagnostics": (None, "there are none"),
    "inference_geo": (None, "the server is where it is"),
    "user_profile_id": (None, "there are no profiles"),
    "workspace_id": (None, "there are no workspaces"),
    "output_format": (None, "write output_config.format"),
}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}


def read_messages(body: bytes) -> ChatAsk:
    """Raises FieldError with the first thing that is wrong, by name."""
    asked = json_object(body)
    check_names(asked, used=_USED, hints=HINTS, unbuilt=_UNBUILT)
    max_tokens = needed(asked, "max_tokens", int)
    sampling = extra_sampling(asked, ("temperature", "top_p", *_ALSO))
    stop = field(asked, "stop_sequences", list[str], default=[])
    if stop:
        sampling["stop"] = stop
    return _ask(asked, max_tokens, sampling)


def read_count_tokens(body: bytes) -> ChatAsk:
    """The same of a request that only wants its prompt counted. Raises FieldError by name."""
    asked = json_object(body)
    check_names(asked, used=_PROMPT, hints=HINTS, unbuilt=_UNBUILT)
    return _ask(asked, None, {})


def _ask(asked: dict[str, Any], max_tokens: int | None, sampling: dict[str, Any]) -> ChatAsk:
    model = field(asked, "model", str)
    system = system_text(asked.get("system"))
    messages = chat_messages(asked.get("messages"))
    thinking, notices = _thinking(asked)
    effort, response_format = _output(asked)
    if effort is not None and thinking is False:
        effort, notices = (
            None,
            (*notices, f"output_config.effort={effort} has no effect: the request turns thinking off"),
        )
    choice, parallel = _tool_choice(asked.get("tool_choice"))
    tools = _tools(asked)
    check_continued(messages, tools, "messages")
    return ChatAsk(
        model=model,
        messages=[{"role": "system", "content": system}, *messages] if system else messages,
        stream=field(asked, "stream", bool, default=False),
        max_tokens=max_tokens,
        sampling=sampling,
        thinking=thinking,
        reasoning_effort=effort,
        tools=tools or None,
        tool_choice=choice,
        response_format=response_format,
        form="output_config.format" if response_format else None,
        parallel_tool_calls=parallel,
        notices=notices,
        **routing(asked),
    )


def _thinking(asked: dict[str, Any]) -> tuple[bool | None, tuple[str, ...]]:
    wish = field(asked, "thinking", dict[str, Any])
    if wish is None:
        return None, ()
    check_names(wish, used=("type", "budget_tokens", "display"), where="thinking.")
    kind = wish.get("type")
    if not isinstance(kind, str) or kind not in _THINKING:
        raise FieldError(f"thinking.type={kind!r:.60}: there are {', '.join(_THINKING)}", param="thinking.type")
    if wish.get("display") not in (None, "summarized"):
        why = f"thinking.display={wish['display']!r:.60} is not supported: thinking is told in full"
        raise FieldError(why, param="thinking.display", code="unsupported_parameter")
    budget = field(wish, "budget_tokens", int, where="thinking.")
    if budget is None:
        return _THINKING[kind], ()
    return _THINKING[kind], (
        f"thinking.budget_tokens={budget} is not enforced: max_tokens bounds thinking and answer together",
    )


def _output(asked: dict[str, Any]) -> tuple[str | None, dict[str, Any] | None]:
    """(effort, response_format), each None where nothing is asked."""
    config = field(asked, "output_config", dict[str, Any], default={})
    check_names(
        config, used=("effort", "format"), unbuilt={"task_budget": (None, "there is none")}, where="output_config."
    )
    effort = field(config, "effort", str, where="output_config.")
    if effort is not None and effort not in _EFFORTS:
        why = f"output_config.effort={effort!r:.60}: there are {', '.join(_EFFORTS)}"
        raise FieldError(why, param="output_config.effort")
    wanted = field(config, "format", dict[str, Any], where="output_config.")
    if wanted is None:
        return effort, None
    if wanted.get("type") != "json_schema":
        why = f"output_config.format.type={wanted.get('type')!r:.60}: there is json_schema"
        raise FieldError(why, param="output_config.format.type")
    check_inner(wanted, ("type", "schema"), "output_config.format")
    schema = needed(wanted, "schema", dict[str, Any], where="output_config.format.")
    return effort, {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _tools(asked: dict[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for number, tool in enumerate(field(asked, "tools", list[dict[str, Any]], default=[])):
        place = f"tools.{number}."
        if tool.get("type") not in (None, "custom"):
            why = f"{place}type={tool['type']!r:.60} is not supported: there are tools with an input_schema only"
            raise FieldError(why, param=f"{place}type", code="unsupported_tool")
        unbuilt = {
            "defer_loading": (False, "tools are told at once"),
            "allowed_callers": (["direct"], "only the model calls tools"),
            "input_examples": ([], "write them into the description"),
        }
        hints = ("cache_control", "eager_input_streaming")
        check_names(
            tool, used=("type", "name", "description", "input_schema", "strict"), hints=hints, unbuilt=unbuilt, where=place
        )  # fmt: skip
        name, schema = needed(tool, "name", str, where=place), needed(tool, "input_schema", dict[str, Any], where=place)
        description, strict = field(tool, "description", str, where=place), field(tool, "strict", bool, where=place)
        tools.append(function_tool(name, description, schema, strict))
    return tools


def _tool_choice(choice: Any) -> tuple[Any, bool]:
    """(tool_choice of Chat Completions, whether an answer may hold several calls)."""
    if choice is None:
        return None, True
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        why = f'tool_choice={choice!r:.80}: there are {{"type": "auto"}}, "any", "none" and {{"type": "tool", "name": "…"}}'
        raise FieldError(why, param="tool_choice")
    check_names(choice, used=("type", "name", "disable_parallel_tool_use"), where="tool_choice.")
    parallel = not field(choice, "disable_parallel_tool_use", bool, where="tool_choice.", default=False)
    if kind == "tool":
        name = needed(choice, "name", str, where="tool_choice.")
        return {"type": "function", "function": {"name": name}}, parallel
    return {"auto": "auto", "any": "required", "none": "none"}[kind], parallel
