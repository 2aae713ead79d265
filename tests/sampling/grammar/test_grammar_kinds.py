"""Every kind of grammar: what it allows, what it forbids, on each backend that has it."""

import json

import pytest
from grammar_walks import Writer, allows, legal_ids
from read_answers import read

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.grammar.backend import GrammarBackend, GrammarError, Vocabulary
from deepinfer.sampling.grammar.problems import grammar_problems
from deepinfer.structured import (
    Choice,
    Ebnf,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTag,
    Tag,
    Tool,
    ToolCalls,
    as_grammar,
)

ARITHMETIC = 'root ::= term ("+" term)*\nterm ::= number | "(" root ")"\nnumber ::= [0-9]+\n'
LARK = 'start: "a" (b | "c")+\nb: /b{2}/\n'
KINDS = {
    "json_object": (JsonObject(), ["{}", '{"a": [1, null]}', '{\n  "a": {}\n}'], ["[]", "1", '{"a"}', "{} "]),
    "json_schema": (JsonSchema('{"type": "integer"}'), ["5", "-1"], ["1.5", '"5"']),
    "regex": (Regex("yes|no|/[a-c]+/"), ["yes", "no", "/abc/"], ["ye", "yesno", "//"]),
    "regex-unicode": (Regex("größe [0-9]{2}"), ["größe 42"], ["grösse 42", "größe 4"]),
    "choice": (Choice(("yes", "yes, please", 'Ä🙂\n"q"')), ["yes", "yes, please", 'Ä🙂\n"q"'], ["no", "yes,"]),
    "ebnf": (Ebnf(ARITHMETIC), ["1", "(1+22)+3", "((7))"], ["1+", "(1", "a"]),
    "ebnf-shared-letters": (Ebnf('root ::= word "x"\nword ::= [a-z]+\n'), ["abcx", "xx"], ["x", "abc"]),
}
TAG = StructuralTag(
    tags=(Tag(begin="<n>", end="</n>", schema={"type": "integer"}), Tag(begin="<w ", end="/>", pattern="[a-z]+")),
)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_grammar_allows(backend: GrammarBackend, vocabulary, name: str) -> None:
    grammar, good, bad = KINDS[name]
    compiled = backend.compile(grammar)
    assert [text for text in good if not allows(compiled, text, vocabulary)] == []
    assert [text for text in bad if allows(compiled, text, vocabulary)] == []


def test_lark_is_read_by_llguidance(llguidance: GrammarBackend, vocabulary) -> None:
    compiled = llguidance.compile(Ebnf(LARK))
    assert allows(compiled, "abbc", vocabulary) and not allows(compiled, "abc", vocabulary)


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Regex("["), "unclosed"),
        (Regex(r"a\q"), "escape"),
        (Regex(r"(a)\1"), "backreferences"),
        (Regex("(?=a)b"), "look-around"),
        (Ebnf("root ::= foo"), "'foo' not found"),
        (Ebnf("root ::= ("), "Expected"),
        (Ebnf("nothing at all"), "GBNF"),
        (Ebnf("start: foo"), "foo"),
        (Ebnf('%llguidance {"no_forcing": false}\nstart: "a"'), "%llguidance"),
        (JsonSchema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "oneOf"),
    ],
)
def test_broken_grammars_are_refused_with_the_reason(llguidance: GrammarBackend, grammar, says: str) -> None:
    with pytest.raises(GrammarError) as refused:
        llguidance.compile(grammar)
    assert says in str(refused.value) and "<state>" not in str(refused.value)


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (TAG, ["", "free text", "a <n>5</n> b <w abc/> c", "x < n"], ["<n>", "<n>a</n>", "<w A/>", "<n>5</w>"]),
        ({"at_least_one": True}, ["a <n>5</n>", "<n>1</n> b"], ["", "free text"]),
        ({"stop_after_first": True}, ["free", "a <n>5</n>"], ["<n>5</n> more"]),
        ({"at_least_one": True, "stop_after_first": True}, ["a <n>5</n>"], ["a", "<n>5</n> more"]),
        ({"triggers": ("<",)}, ["free", "<n>5</n>", "<w a/>!"], ["a < b", "<x>"]),
    ],
    ids=["plain", "at_least_one", "stop_after_first", "both", "shared trigger"],
)
def test_structural_tags(backend: GrammarBackend, vocabulary, tag, good: list[str], bad: list[str]) -> None:
    if isinstance(tag, dict):
        tag = StructuralTag(tags=TAG.tags, **tag)
    if problems := grammar_problems(tag, backend.name):
        assert backend.name == "xgrammar" and tag.at_least_one and "grammar=llguidance" in problems[0]
        return
    compiled = backend.compile(tag)
    assert [text for text in good if not allows(compiled, text, vocabulary)] == []
    assert [text for text in bad if allows(compiled, text, vocabulary)] == []


@pytest.mark.parametrize(
    "content", [Regex("[0-9]+"), JsonSchema({"type": "integer"}), Choice(("7", "42")), Ebnf(ARITHMETIC)]
)
def test_a_text_trigger_comes_before_any_kind(backend: GrammarBackend, vocabulary, content) -> None:
    fields = {name: getattr(content, name) for name in content.__struct_fields__} | {"trigger": "Answer: "}
    compiled = backend.compile(type(content)(**fields))
    assert allows(compiled, "I think. Answer: 42", vocabulary) and allows(compiled, "No idea.", vocabulary)
    assert not allows(compiled, "Answer: x", vocabulary) and not allows(compiled, "Answer: ", vocabulary)


def test_a_grammar_as_a_dict() -> None:
    assert SamplingParams(grammar={"regex": "yes|no"}).grammar == Regex("yes|no")
    assert as_grammar({"json_object": True}) == JsonObject()
    assert as_grammar({"choice": ["a", "b"], "trigger": "x"}) == Choice(("a", "b"), trigger="x")
    assert as_grammar({"kind": "structural_tag", "tags": [{"begin": "<a>", "end": "</a>"}]}).tags[0].begin == "<a>"
    for wrong in ({"regx": "a"}, {"regex": 5}, {"kind": "foo"}, {"regex": "a", "foo": 1}, {"regex": "a", "choice": []}):
        with pytest.raises(ValueError, match="grammar="):
            as_grammar(wrong)


def test_whitespace_in_json_is_bounded(backend: GrammarBackend, vocabulary) -> None:
    """G05: an answer that loves spaces runs out of them."""
    matcher = backend.compile(JsonObject()).matcher()
    (brace,) = vocabulary.tokenizer.encode("{")
    (space,) = vocabulary.tokenizer.encode(" ")
    assert matcher.accept([brace]) is None
    taken = 0
    while matcher.accept([space]) is None:
        taken += 1
        assert taken <= 64, "spaces without an end"
    assert len(legal_ids(matcher.mask())) > 0


def test_special_tokens_and_padding_are_never_legal(backend: GrammarBackend, vocabulary) -> None:
    for grammar in (Regex("[^~]*"), JsonObject(), TAG):
        legal = set(legal_ids(backend.compile(grammar).matcher().mask()).tolist())
        assert legal and not legal & vocabulary.special
        assert max(legal) < vocabulary.num_tokens


@pytest.mark.parametrize("beyond", [0, 1, 31, 32])
def test_masks_have_the_words_of_the_models_vocabulary(tiny_tokenizer, beyond: int) -> None:
    from deepinfer.sampling.grammar.llguidance import Llguidance

    padded = Vocabulary(tiny_tokenizer, tiny_tokenizer.vocab_size + beyond, (1,))
    mask = Llguidance(padded).compile(Regex("[^~]*")).matcher().mask()
    assert len(mask) == padded.num_words == len(padded.all_legal())
    assert max(legal_ids(mask)) < padded.num_tokens and len(legal_ids(padded.all_legal())) == padded.vocab_size


TOOLS = (
    Tool(
        name="weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["city"],
        },
    ),
    Tool(name="stop", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
    Tool(name="any", parameters={"type": "object", "not": {"required": ["x"]}}),
)
D = "｜DSML｜"


def call(name: str, *parameters: tuple[str, bool, str]) -> str:
    inner = "".join(
        f'<{D} parameter name="{key}" string="{str(text).lower()}">{value}</{D} parameter>\n'
        for key, text, value in parameters
    )
    return f'<{D} invoke name="{name}">\n{inner}</{D} invoke>\n'


@pytest.mark.parametrize(
    ("calls", "legal"),
    [
        (call("weather", ("city", True, "Rome")), True),
        (call("weather", ("city", True, "a </b> {}\n1"), ("unit", True, "F"), ("days", False, "3")), True),
        (call("weather", ("city", True, "x"), ("near", False, "null")), True),
        (call("weather", ("city", True, "x"), ("near", True, "here")), True),
        (call("stop") + call("weather", ("city", True, "")), True),
        (call("any", ("whatever", False, "[1]"), ("more", True, "text")), True),
        (call("weather"), False),
        (call("weather", ("days", False, "3")), False),
        (call("weather", ("city", True, "x"), ("days", False, "12")), False),
        (call("weather", ("city", True, "x"), ("days", True, "3")), False),
        (call("weather", ("city", True, "x"), ("unit", True, "K")), False),
        (call("climate"), False),
        (call("stop", ("x", True, "1")), False),
        ("", False),
    ],
)
def test_tool_calls_follow_the_tools(llguidance: GrammarBackend, vocabulary, calls: str, legal: bool) -> None:
    opened = llguidance.compile(ToolCalls(tools=TOOLS, opened=True))
    assert allows(opened, f"{calls}</{D} calls>", vocabulary) == legal
    begun = llguidance.compile(ToolCalls(tools=TOOLS))
    assert allows(begun, f" calls>\n{calls}</{D} calls>", vocabulary) == legal


@pytest.mark.parametrize(
    ("answer", "legal"),
    [
        ('{"a": 1}', True),
        ('{"a": 1}x', False),
        ("Let me see.", False),
        (f"\n\n<{D} calls>\n{call('stop')}</{D} calls>", True),
        (f"<{D} calls>\n{call('stop')}{call('stop')}</{D} calls>", True),
        (f'{{"a": 1}}\n\n<{D} calls>\n{call("stop")}</{D} calls>', False),
        (f"\n\n<{D} calls>\n{call('gone')}</{D} calls>", False),
        (f"\n\n<{D} calls>\n{call('stop')}", False),
    ],
)
def test_an_answer_is_calls_or_has_another_form(
    llguidance: GrammarBackend, vocabulary, answer: str, legal: bool
) -> None:
    compiled = llguidance.compile(ToolCalls(tools=TOOLS, otherwise=JsonObject()))
    assert allows(compiled, answer, vocabulary) == legal


def test_the_other_form_is_checked_too() -> None:
    (problem,) = grammar_problems(ToolCalls(tools=TOOLS, otherwise=JsonSchema("{")), "llguidance")
    assert problem.startswith("json_schema is no JSON")


def test_tool_calls_from_noise_are_read_by_the_codec(writer: Writer) -> None:
    """The makers' parser takes apart what the grammar lets through."""
    from deepinfer.serving.codec import Codec

    tools = [
        {"type": "function", "function": {"name": tool.name, "description": "d", "parameters": tool.parameters}}
        for tool in TOOLS[:2]
    ]
    codec = Codec(writer.vocabulary.tokenizer)
    prompt = codec.encode("Hi", SamplingParams(), tools=tools, tool_choice="required")
    ends = {token: 3.0 for token in (1, writer.vocabulary.tokenizer.token_id(D))}
    num_calls = 0
    for seed in range(12):
        params = SamplingParams(grammar=ToolCalls(tools=TOOLS[:2], opened=True), max_tokens=500)
        tokens, by_itself = writer.write(params, seed, bias=ends)
        if by_itself:
            message = codec.parse(prompt, tokens, "stop")
            assert message.problems == () and message.content == ""
            num_calls += len(message.tool_calls)
            done = read(codec, prompt, tokens)
            assert done.reader.problems == [] and done.content == "" and done.finish_reason == "tool_calls"
            assert done.calls == [(one.name, json.loads(one.arguments)) for one in message.tool_calls]
            assert all(isinstance(json.loads(call.arguments), dict) for call in message.tool_calls)
    assert num_calls >= 6


def test_only_llguidance_has_tool_calls(backend: GrammarBackend) -> None:
    if backend.name == "llguidance":
        pytest.skip("the other backend is what this is about")
    with pytest.raises(GrammarError, match="grammar=llguidance"):
        backend.compile(ToolCalls(tools=TOOLS))


def test_forced_text_is_proposed_as_the_tokenizer_cuts_it(backend: GrammarBackend, vocabulary) -> None:
    matcher = backend.compile(Regex("the cat sat on the mat|the cat sat on the hat")).matcher()
    assert vocabulary.tokenizer.decode(matcher.forced()).startswith("the cat sat on")
    assert matcher.forced() == vocabulary.tokenizer.encode(vocabulary.tokenizer.decode(matcher.forced()))
    assert matcher.accept(matcher.forced()) is None
    assert backend.compile(Regex("[a-z]+")).matcher().forced() == []
