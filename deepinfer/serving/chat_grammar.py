"""What a chat asks of the form of its answer, as a grammar: response_format, tool_choice and strict tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.chat_checks import ChatError
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
    wishes = _unenforced(wanted, backend, response_format, tool_choice)
    grammar, notices = (
        (None, ()) if wanted is None or backend == "none" else _grammar(wanted, backend, tokenizer, tools)
    )
    own = params.grammar
    if grammar is not None and own is not None:
        raise ChatError(
            "the conversation asks for a form of its answer (response_format or tools), and sampling brings a grammar as "
            "well: give one of them"
        )
    found: Any = own if grammar is None else grammar
    if thinking and isinstance(found, Grammar) and found.starts_after is None:
        found = msgspec.structs.replace(found, starts_after=tokenizer.token_id("</think>"))
    return msgspec.structs.replace(params, grammar=found), (*notices, *wishes)


def _grammar(
    wanted: recipe.OutputConstraint, backend: str, tokenizer: BpeTokenizer, given: Any
) -> tuple[AnyGrammar | None, tuple[str, ...]]:
    if wanted.kind == "json":
        return (JsonSchema(json.loads(wanted.schema)) if wanted.schema else JsonObject()), ()
    if wanted.kind == "regex":
        return Regex(wanted.schema), ()
    from deepinfer.sampling.grammar.dsml import loosened  # which imports the library

    schemas = {one["function"]["name"]: one["function"].get("parameters") for one in given or ()}
    tools = tuple(_tool(one["function"], schemas) for one in json.loads(wanted.schema))
    required = wanted.kind == "tool_call_required"
    if backend != "llguidance" or not (required or any(tool.strict for tool in tools)):
        return None, ()
    notices = tuple(
        f"the schema of the tool {tool.name} is not enforced in full: {problem}"
        for tool in tools
        if not tool.strict
        for problem in loosened(tool)
    )
    if required:
        return ToolCalls(tools=tools, opened=True), notices
    marker = tokenizer.token_id("｜DSML｜")
    assert marker is not None, "a conversation with tools was rendered with it"
    return ToolCalls(tools=tools, trigger_token_ids=(marker,)), notices


def _tool(function: dict[str, Any], schemas: dict[str, Any]) -> Tool:
    """A tool with its schema as it was given: the library drops keywords of strict tools that it does not know."""
    parameters = schemas.get(function["name"]) or function.get("parameters") or {}
    return Tool(name=function["name"], parameters=parameters, strict=bool(function.get("strict")))


def _unenforced(
    wanted: recipe.OutputConstraint | None, backend: str, response_format: Any, tool_choice: Any
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
        elif of_tools:
            notices.append(
                "response_format is not enforced beside tools: the answer may be a call; leave one of them out"
            )
    if (tool_choice == "required" or isinstance(tool_choice, dict)) and backend != "llguidance":
        notices.append(
            f"tool_choice is not enforced: grammar={backend}, so the prompt asks for a call and the answer may lack it; "
            f"{_INSTEAD}"
        )
    return tuple(notices)
