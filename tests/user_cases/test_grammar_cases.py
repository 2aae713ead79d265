"""What users of such engines have reported about structured output, G01 to G08, and D04. The reports are named beside each.

The engine is the tiny model's; where a case is about its masks alone, the desk is asked. The number of each case is in the
name of its test.
"""

import json
import time
from collections.abc import Iterator

import jsonschema
import numpy as np
import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.interfaces import Request
from deepinfer.sampling.grammar.backend import Vocabulary, is_legal
from deepinfer.sampling.grammar.desk import GrammarDesk
from deepinfer.sampling.grammar.llguidance import Llguidance
from deepinfer.sampling.params import ParamsError
from deepinfer.structured import Ebnf, Grammar, JsonObject, JsonSchema, Regex, ToolCalls

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance") as one:
        yield one


@pytest.fixture(scope="module")
def drafting() -> Iterator[LLM]:
    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance", "speculation=ngram") as one:
        yield one


@pytest.fixture(scope="module")
def vocabulary(llm: LLM) -> Vocabulary:
    assert llm.tokenizer is not None
    return Vocabulary(llm.tokenizer, llm.engine.limits.vocab_size, llm.engine.limits.eos_token_ids)


@pytest.fixture
def desk(vocabulary: Vocabulary) -> GrammarDesk:
    return GrammarDesk(Llguidance(vocabulary), vocabulary, compile_timeout_s=20)


def attached(desk: GrammarDesk, grammar: Grammar) -> None:
    params = SamplingParams(grammar=grammar)
    desk.prepare(params)
    desk.start(1, params)
    found: list = []
    while not found:
        desk.wait(1.0)
        found = desk.ready()
    assert found == [(1, None)]
    desk.attach(0, Request(request_id=1, prompt_ids=np.array([0]), params=params, seed=0))


def masks(desk: GrammarDesk, *drafts: int) -> np.ndarray:
    return desk.masks(0, np.array(drafts, dtype=np.int64))


def test_g01_thinking_ends_inside_an_accepted_block(desk: GrammarDesk, vocabulary: Vocabulary) -> None:
    """vllm#46118: word, </think>, code fence, json. The tail is checked from the marker on, the fence is the cut."""
    tokenizer = vocabulary.tokenizer
    end = tokenizer.token_id("</think>")
    attached(desk, JsonObject(starts_after=end))
    word, fence = tokenizer.encode("word")[0], tokenizer.encode("```")[0]
    rows = masks(desk, word, end, fence, *tokenizer.encode("json"))
    assert len(rows) == 3 and is_legal(rows[1], end) and not is_legal(rows[2], fence)
    assert is_legal(rows[2], tokenizer.encode("{")[0])
    assert desk.advance(0, [word, end]) is None


@pytest.mark.parametrize(
    "broken", [JsonSchema({"type": "objekt"}), Regex("["), Ebnf("root ::= ("), Ebnf("root ::= gone")]
)
def test_g02_a_broken_grammar_ends_its_request_alone(llm: LLM, broken: Grammar) -> None:
    """vllm PR#17623, sglang#4574: the engine went down. Here the request ends before it is scheduled, others run."""
    steps = llm.engine.stats().prefill_rows
    bad, good = llm.generate(
        ["a", "b"], [SamplingParams(grammar=broken), SamplingParams(max_tokens=3, ignore_eos=True)]
    )
    assert bad.error and bad.outputs[0].token_ids == [] and bad.finish_reason == "error"
    assert len(good.outputs[0].token_ids) == 3 and good.error is None
    assert llm.engine.stats().prefill_rows - steps == len(good.prompt_token_ids)


def test_g03_a_grammar_that_cannot_be_parsed_never_runs_free(llm: LLM) -> None:
    """ggml-org/llama.cpp#19051: output ran free with 200."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\q$"}}}
    for grammar in (JsonSchema(schema), Regex(r"\q")):
        (out,) = llm.generate("a", SamplingParams(grammar=grammar))
        assert "escape" in (out.error or "") and out.text == ""


def nested_one_of(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for level in range(depth):
        cases = [{"type": "object", "properties": {f"{side}{level}": schema}} for side in "ab"]
        schema = {"oneOf": cases}
    return schema


@pytest.mark.parametrize("depth", [12, 20])
def test_g04_a_deep_one_of_ends_with_a_reason_while_others_go_on(llm: LLM, depth: int) -> None:
    """vllm#54003, sglang#39125: it compiled for minutes. 2 to the 20 cases do not pass the door, nor do 2 to the 12."""
    shared: dict = {"$defs": {"d0": {"type": "string"}}, "$ref": f"#/$defs/d{depth}"}
    for level in range(depth):
        inner = {"$ref": f"#/$defs/d{level}"}
        cases = [{"type": "object", "properties": {side: inner}} for side in "ab"]
        shared["$defs"][f"d{level + 1}"] = {"oneOf": cases}
    wanted = [JsonSchema(shared)] + ([JsonSchema(nested_one_of(depth))] if depth == 12 else [])
    started_s = time.monotonic()
    each = [SamplingParams(grammar=one) for one in wanted]
    *bad, good = llm.generate(["a"] * len(wanted) + ["b"], [*each, SamplingParams(max_tokens=4, ignore_eos=True)])
    assert all(out.error for out in bad) and len(good.outputs[0].token_ids) == 4
    assert time.monotonic() - started_s < 20  # twice the default limit, never minutes


def test_g05_spaces_run_out_and_the_object_closes(llm: LLM) -> None:
    """vllm PR#44619: legal whitespace until max_tokens, of a model that loves spaces."""
    assert llm.tokenizer is not None
    spaces = {t: 60.0 for t in range(llm.tokenizer.vocab_size) if llm.tokenizer.token_bytes(t).strip(b" \n\t") == b""}
    spaces = {token: bias for token, bias in spaces.items() if not llm.tokenizer.is_special(token)}
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    params = SamplingParams(grammar=JsonSchema(schema), logit_bias=spaces, temperature=0.0, max_tokens=128)
    (out,) = llm.generate("a", params)
    assert out.finish_reason == "stop" and isinstance(json.loads(out.text)["a"], bool)
    assert out.text.count(" ") + out.text.count("\n") >= 3  # it did love them


def test_g06_json_comes_after_thinking(llm: LLM) -> None:
    """vllm#41132: the JSON ended up in the reasoning field."""
    params = SamplingParams(max_tokens=300, seed=3)
    (out,) = llm.chat("Give me json", params, thinking=True, response_format={"type": "json_object"})
    assert out.finish_reason == "stop" and out.message is not None
    assert isinstance(json.loads(out.message.content), dict) and out.message.reasoning_content


def test_g07_an_unsupported_keyword_is_refused_by_name_or_left_free_with_a_note(llm: LLM) -> None:
    """noonghunna/club-3090#45: 500."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "propertyNames": {"pattern": "^c"}}
    function = {"name": "weather", "description": "d", "parameters": parameters}
    few = SamplingParams(max_tokens=30)
    (loose,) = llm.chat("Weather?", few, tools=[{"type": "function", "function": function}], tool_choice="required")
    assert loose.error is None and any("propertyNames" in notice for notice in loose.notices)
    strict = {"required": ["city"], "additionalProperties": False, **parameters}
    function = function | {"strict": True, "parameters": strict}
    (refused,) = llm.chat("Weather?", few, tools=[{"type": "function", "function": function}], tool_choice="required")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": parameters}}
    (also,) = llm.chat("Give json", few, response_format=schema)
    assert all("propertyNames" in (out.error or "") for out in (refused, also))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_g08_n_gram_drafts_under_a_grammar(llm: LLM, drafting: LLM, temperature: float) -> None:
    """vllm#15554: tokens were refused in mid-answer. Drafts come from the prompt, the schema has an optional member."""
    prompt = 'Rome {"name": "Anna", "age": 7} {"name": "Anna", "size": 7} {"name": "Anna", "age": 7} again: '
    params = SamplingParams(grammar=JsonSchema(PERSON), temperature=temperature, seed=5, max_tokens=80)
    (off,), (on,) = llm.generate(prompt, params), drafting.generate(prompt, params)
    assert on.outputs[0].token_ids == off.outputs[0].token_ids and on.finish_reason == "stop"
    jsonschema.validate(json.loads(on.text), PERSON)
    assert sum(drafting.engine.stats().checked_at) > 0


def test_d04_a_tool_marker_while_thinking_starts_nothing(desk: GrammarDesk, vocabulary: Vocabulary) -> None:
    """bjk110/spark_vllm_docker#16: tool tokens accepted before </think>. A draft that offers the marker is text there."""
    tokenizer = vocabulary.tokenizer
    end, marker = tokenizer.token_id("</think>"), tokenizer.token_id("｜DSML｜")
    assert end is not None and marker is not None
    tools = ({"name": "weather", "parameters": {"type": "object", "properties": {}}},)
    grammar = {"kind": "tool_calls", "tools": tools, "starts_after": end, "trigger_token_ids": [marker]}
    attached(desk, SamplingParams(grammar=grammar).grammar)
    word = tokenizer.encode("word")[0]
    thinking = masks(desk, marker, word, end, marker, word)
    assert len(thinking) == 5 and is_legal(thinking[1], word)  # thinking goes on behind a marker …
    assert not is_legal(thinking[4], word)  # … a call does not, once thoughts are over
    with pytest.raises(ParamsError):
        desk.prepare(SamplingParams(grammar=ToolCalls(tools=())))
