"""What a chat asks of the form of its answer, as a grammar: response_format, tool_choice and strict tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.chat_history import ChatError
from deepinfer.structured import AnyGrammar, Grammar, JsonObject, JsonSchema, Regex, Tool, ToolCalls

if TYPE_CHECKING:
    import deepseek_recipe as recipe

    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.tokenizer import BpeTokenizer

_INSTEAD = "type grammar=llguidance to have it enforced"


def under_grammar(
    params: SamplingParams,
    request: recipe.ConversationRequest,
    tokenizer: BpeTokenizer,
    *,
    thinking: bool,
    backend: str,
    response_format: Any,
    tool_choice: Any,
    tools: Any = None,
) -> tuple[SamplingParams, tuple[str, ...]]:
    """`params` with the grammar that the conversation asks for, and a notice for each wish that nothing enforces.

    When thinking, the grammar begins after </think>. Raises ChatError where `params` bring a grammar of their own as well.
    """
    wanted = request.inference_options.output_constraint
    wishes = _unenforced(wanted, backend, response_format, tool_choice, tools)
    grammar, notices = (
        (None, ())
        if wanted is None or backend == "none"
        else _grammar(wanted, backend, tokenizer, tools, response_format)
    )
    own = params.grammar
    if grammar is not None and own is not None:
        raise ChatError(
            "the conversation asks for a form of its answer (response_format or tools), and sampling brings a grammar as "
            "well: give one of them"
        )
    found: Any = own if grammar is None else grammar
    if own is not None and wanted is not None and wanted.kind == "tool_call":
        wishes = (*wishes, "the tools cannot be called: the whole answer has the form that sampling asks for")
    if thinking and isinstance(found, Grammar) and found.starts_after is None:
        found = msgspec.structs.replace(found, starts_after=tokenizer.token_id("</think>"))
    return msgspec.structs.replace(params, grammar=found), (*notices, *wishes)


def _grammar(
    wanted: recipe.OutputConstraint, backend: str, tokenizer: BpeTokenizer, given: Any, response_format: Any
) -> tuple[AnyGrammar | None, tuple[str, ...]]:
    if wanted.kind == "json":
        return (JsonSchema(json.loads(wanted.schema)) if wanted.schema else JsonObject()), ()
    if wanted.kind == "regex":
        return Regex(wanted.schema), ()
    from deepinfer.sampling.grammar.dsml import loosened  # which imports the library

    as_given = {one["function"]["name"]: one["function"] for one in given or ()}
    tools = tuple(_tool(one["function"], as_given) for one in json.loads(wanted.schema))
    required = wanted.kind == "tool_call_required"
    otherwise = None if required else _form_of(response_format)
    if backend != "llguidance" or not (required or otherwise is not None or any(tool.strict for tool in tools)):
        return None, ()
    notices = tuple(
        f"the schema of the tool {tool.name} is not enforced in full: {problem}"
        for tool in tools
        if not tool.strict
        for problem in loosened(tool)
    )
    if required:
        return ToolCalls(tools=tools, opened=True), notices
    if otherwise is not None:
        return ToolCalls(tools=tools, otherwise=otherwise), notices
    marker = tokenizer.token_id("｜DSML｜")
    assert marker is not None, "a conversation with tools was rendered with it"
    return ToolCalls(tools=tools, trigger_token_ids=(marker,)), notices


def _form_of(response_format: Any) -> JsonSchema | JsonObject | Regex | None:
    """What an answer without calls looks like."""
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "json_schema":
        return JsonSchema(response_format[kind]["schema"])
    if kind == "regex":
        return Regex(response_format[kind])
    return JsonObject() if kind == "json_object" else None


def _tool(function: dict[str, Any], as_given: dict[str, dict[str, Any]]) -> Tool:
    """A tool as it was given: the library drops keywords of strict tools that it does not know."""
    given = as_given.get(function["name"], {})
    parameters = given.get("parameters") or function.get("parameters") or {}
    return Tool(name=function["name"], parameters=parameters, strict=bool(given.get("strict")))


def _unenforced(
    wanted: recipe.OutputConstraint | None, backend: str, response_format: Any, tool_choice: Any, tools: Any
) -> tuple[str, ...]:
    """What the prompt asks of the model and no grammar makes sure of."""
    notices = []
    of_tools = wanted is not None and wanted.kind.startswith("tool_call")
    if isinstance(response_format, dict) and response_format.get("type") != "text":
        if backend == "none":
            notices.append(
                "response_format is not enforced: grammar=none, so the prompt asks for it and the answer may differ; "
                f"{_INSTEAD}"
            )
        elif of_tools and backend != "llguidance":
            notices.append(
                f"response_format is not enforced beside tools by grammar={backend}, since the answer may be a call; {_INSTEAD}"
            )
    if (tool_choice == "required" or isinstance(tool_choice, dict)) and backend != "llguidance":
        notices.append(
            f"tool_choice is not enforced: grammar={backend}, so the prompt asks for a call and the answer may lack it; "
            f"{_INSTEAD}"
        )
    strict = [tool["function"]["name"] for tool in tools or () if tool["function"].get("strict")] if of_tools else []
    if strict and backend != "llguidance":
        notices.append(
            f"strict is not enforced for {', '.join(strict)}: grammar={backend}, so the prompt shows the schema and a call may "
            f"differ from it; {_INSTEAD}"
        )
    return tuple(notices)
