"""One conversation in three dialects is one prompt under one set of rules."""

import json
from typing import Any

import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.chat_ask import ChatAsk
from deepinfer.serving.chat_job import chat_job
from deepinfer.serving.chat_request import chat_call
from deepinfer.serving.fields import FieldError
from deepinfer.serving.jobs import Desk, Job
from deepinfer.serving.messages_request import read_messages
from deepinfer.serving.responses_request import read_responses

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
CALL = '{"x": "1"}'


@pytest.fixture(scope="module")
def desk(chat_tokenizer: BpeTokenizer) -> Desk:
    sizes = {"vocab_size": 300, "max_model_len": 4000, "bos_token_id": 0, "eos_token_ids": [1]}
    return Desk(chat_tokenizer, **sizes, grammar="llguidance")


def chat(*, max_tokens: int = 9, begun: str = "", forced: bool = False) -> ChatAsk:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": CALL}}
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "I look."} | ({} if begun else {"tool_calls": [call]}),
        *([] if begun else [{"role": "tool", "tool_call_id": "c1", "content": "done"}]),
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
        *([{"role": "assistant", "content": begun}] if begun else []),
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}] if not begun else []
    choice = {"tool_choice": "required"} if forced else {}
    body = {"model": "m", "messages": messages, "tools": tools, "max_tokens": max_tokens, "temperature": 0.5, **choice}
    return chat_call(json.dumps(body).encode()).ask


def responses(*, max_tokens: int = 9, begun: str = "", forced: bool = False) -> ChatAsk:
    calls = [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": CALL},
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
    ]
    items = [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        *([] if begun else calls),
        {"role": "user", "content": [{"type": "input_text", "text": "go on"}]},
        *([{"role": "assistant", "content": begun}] if begun else []),
    ]
    tools = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}] if not begun else []
    choice = {"tool_choice": "required"} if forced else {}
    body = {"model": "m", "instructions": "be kind", "input": items, "tools": tools, "max_output_tokens": max_tokens}
    return read_responses(json.dumps(body | {"temperature": 0.5} | choice).encode()).chat()


def messages(*, max_tokens: int = 9, begun: str = "", forced: bool = False) -> ChatAsk:
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": json.loads(CALL)}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "done"}
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *([] if begun else [use])]},
        {"role": "user", "content": [*([] if begun else [result]), {"type": "text", "text": "go on"}]},
        *([{"role": "assistant", "content": begun}] if begun else []),
    ]
    tools = [{"name": "f", "input_schema": SCHEMA, "strict": True}] if not begun else []
    choice = {"tool_choice": {"type": "any"}} if forced else {}
    body = {"model": "m", "system": "be kind", "messages": turns, "tools": tools, "max_tokens": max_tokens}
    return read_messages(json.dumps(body | {"temperature": 0.5} | choice).encode())


def jobs(desk: Desk, *, thinking: bool = False, **asked: Any) -> list[Job]:
    """Of the three, `thinking` being the server's default."""
    asks = [dialect(**asked) for dialect in (chat, responses, messages)]
    return [chat_job(ask, desk, SamplingParams(), asked=frozenset(), thinking=thinking) for ask in asks]


@pytest.mark.parametrize(
    ("thinking", "asked", "notice"),
    [
        (False, {}, None),
        (True, {}, "temperature=0.5 stays as asked"),  # X14: thoughts that the history lacks are empty
        (True, {"forced": True}, "a tool call is forced"),  # X13
        (False, {"begun": "Well,"}, None),  # X15
        (False, {"max_tokens": 10**6}, "max_tokens=1000000 becomes"),  # X22
    ],
)
def test_prompt_parameters_and_notices_are_the_same(
    desk: Desk, thinking: bool, asked: dict[str, Any], notice: str | None
) -> None:
    first, *others = jobs(desk, thinking=thinking, **asked)
    assert first.chat and (not notice or notice in " ".join(first.chat.notices))
    for other in others:
        assert other.chat and other.prompt_ids == first.prompt_ids
        assert (other.params, other.chat.notices) == (first.params, first.chat.notices)
    assert bool(first.params.grammar) == ("begun" not in asked), "the strict tool is enforced in all of them"


def test_x13_who_asks_for_both_is_told_how_to_choose() -> None:
    """Thinking and a forced call, in the words of each dialect."""
    forced = {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "required"}
    body = {"model": "m", "input": "hi", "reasoning": {"effort": "high"}, **forced}
    with pytest.raises(FieldError, match=r'reasoning=\{"effort": "none"\}'):
        read_responses(json.dumps(body).encode()).chat()
