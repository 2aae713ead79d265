"""What a chat asks of its answer's form becomes a grammar where somebody enforces it, and a notice where nobody does."""

import pytest

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.serving.codec import ChatError, Codec
from deepinfer.structured import JsonObject, JsonSchema, Regex, ToolCalls

USER = [{"role": "user", "content": "Say it as json"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(**more):
    return {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, **more}}


STRICT = tool(strict=True, parameters=PARAMETERS | {"additionalProperties": False})


@pytest.fixture(scope="module")
def enforcing(chat_tokenizer: BpeTokenizer) -> Codec:
    return Codec(chat_tokenizer, grammar="llguidance")


@pytest.mark.parametrize(
    ("response_format", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}, JsonSchema(PARAMETERS)),
        ({"type": "regex", "regex": "yes|no"}, Regex("yes|no")),
    ],
)
def test_response_format_becomes_a_grammar(enforcing: Codec, response_format, grammar) -> None:
    prompt = enforcing.encode(USER, SamplingParams(), response_format=response_format)
    assert prompt.params.grammar == grammar and prompt.notices == ()


def test_when_thinking_it_begins_behind_the_thoughts(enforcing: Codec, chat_tokenizer: BpeTokenizer) -> None:
    """G06: thinking is free."""
    end = chat_tokenizer.token_id("</think>")
    prompt = enforcing.encode(USER, SamplingParams(), thinking=True, response_format={"type": "json_object"})
    assert prompt.params.grammar == JsonObject(starts_after=end)
    own = enforcing.encode(USER, SamplingParams(grammar=Regex("a")), thinking=True)
    assert own.params.grammar == Regex("a", starts_after=end)
    assert enforcing.encode(USER, SamplingParams(grammar=Regex("a"))).params.grammar == Regex("a")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_is_enforced(enforcing: Codec, choice) -> None:
    prompt = enforcing.encode(USER, SamplingParams(), tools=[tool()], tool_choice=choice)
    assert isinstance(prompt.params.grammar, ToolCalls) and prompt.params.grammar.opened and prompt.notices == ()
    assert [one.name for one in prompt.params.grammar.tools] == ["weather"]


def test_a_voluntary_call_is_enforced_where_the_tool_is_strict(enforcing: Codec, chat_tokenizer: BpeTokenizer) -> None:
    marker = chat_tokenizer.token_id("｜DSML｜")
    strict = enforcing.encode(USER, SamplingParams(), tools=[STRICT], thinking=True).params.grammar
    assert isinstance(strict, ToolCalls) and strict.trigger_token_ids == (marker,) and not strict.opened
    assert strict.starts_after == chat_tokenizer.token_id("</think>") and strict.tools[0].strict
    assert enforcing.encode(USER, SamplingParams(), tools=[tool()]).params.grammar is None
    assert enforcing.encode(USER, SamplingParams(), tools=[STRICT], tool_choice="none").params.grammar is None


def test_what_of_a_tool_is_left_free_is_said(enforcing: Codec) -> None:
    """G07: a looser grammar and a note, where the tool is not strict."""
    loose = tool(parameters=PARAMETERS | {"propertyNames": {"pattern": "^c"}})
    (notice,) = enforcing.encode(USER, SamplingParams(), tools=[loose], tool_choice="required").notices
    assert "weather" in notice and "propertyNames" in notice


def test_two_forms_at_once_are_refused(enforcing: Codec) -> None:
    with pytest.raises(ChatError, match="give one of them"):
        enforcing.encode(USER, SamplingParams(grammar=Regex("a")), response_format={"type": "json_object"})
    with pytest.raises(ChatError, match="give one of them"):
        enforcing.encode(USER, SamplingParams(grammar=Regex("a")), tools=[tool()], tool_choice="required")
    (notice,) = enforcing.encode(USER, SamplingParams(grammar=Regex("a")), tools=[tool()]).notices
    assert "the tools cannot be called" in notice


@pytest.mark.parametrize("strict", [False, True])
def test_beside_tools_an_answer_is_a_call_or_has_the_form(enforcing: Codec, chat_tokenizer, strict: bool) -> None:
    one = STRICT if strict else tool()
    both = enforcing.encode(USER, SamplingParams(), thinking=True, tools=[one], response_format={"type": "json_object"})
    grammar = both.params.grammar
    assert isinstance(grammar, ToolCalls) and grammar.otherwise == JsonObject() and not grammar.trigger_token_ids
    assert grammar.starts_after == chat_tokenizer.token_id("</think>") and both.notices[1:] == ()
    forced = enforcing.encode(
        USER, SamplingParams(), tools=[one], tool_choice="required", response_format={"type": "json_object"}
    )
    assert forced.params.grammar.opened and forced.params.grammar.otherwise is None


def test_without_a_grammar_what_is_not_enforced_is_said(chat_tokenizer: BpeTokenizer) -> None:
    free, fast = Codec(chat_tokenizer), Codec(chat_tokenizer, grammar="xgrammar")
    prompt = free.encode(USER, SamplingParams(), response_format={"type": "json_object"})
    assert prompt.params.grammar is None and "type grammar=llguidance" in prompt.notices[0]
    for codec in (free, fast):
        (notice,) = codec.encode(USER, SamplingParams(), tools=[tool()], tool_choice="required").notices
        assert "tool_choice is not enforced" in notice and "type grammar=llguidance" in notice
    assert fast.encode(USER, SamplingParams(), response_format={"type": "json_object"}).params.grammar == JsonObject()
    (notice,) = fast.encode(USER, SamplingParams(), response_format={"type": "json_object"}, tools=[tool()]).notices
    assert "not enforced beside tools" in notice
    (notice,) = free.encode(USER, SamplingParams(), tools=[STRICT]).notices
    assert "strict is not enforced for weather" in notice


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"response_format": "json"}, '{"type": "json_object"}'),
        ({"response_format": {"type": [1]}}, "there are"),
        ({"response_format": {"type": "regex", "pattern": "a"}}, '{"type": "regex", "regex": "yes|no"}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "has no schema"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "gone"}}}, "there are weather"),
        ({"tools": [tool()], "tool_choice": "foo"}, "there are 'none', 'auto', 'required'"),
        ({"tools": [tool()], "tool_choice": "required", "thinking": True}, "thinking=false"),
    ],
)
def test_options_that_cannot_be_are_refused_in_our_words(enforcing: Codec, options: dict, says: str) -> None:
    with pytest.raises(ChatError) as refused:
        enforcing.encode(USER, SamplingParams(), **options)
    assert says in str(refused.value)
