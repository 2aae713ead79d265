"""What a grammar of the wrong shape, or one that cannot be kept to the letter, is answered with, in words of who typed it."""

import json

import pytest
from grammar_walks import allows

from deepinfer.interfaces import SamplingParams
from deepinfer.sampling.grammar.backend import GrammarError
from deepinfer.sampling.grammar.json_keywords import schema_problems
from deepinfer.sampling.params import ParamsError
from deepinfer.structured import (
    Choice,
    Ebnf,
    Grammar,
    JsonSchema,
    Regex,
    StructuralTag,
    Tag,
    Tool,
    ToolCalls,
    as_grammar,
)

TAGS = (Tag(begin="<a>", end="</a>"),)


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (Regex("a", trigger_token_ids=None), "trigger_token_ids=None: give a tuple of token ids"),
        (Regex("a", bound_token_id=[3]), "bound_token_id=[3]: give a token id, or None"),
        (Regex("a", starts_after=()), "starts_after=()"),
        (Regex("a", starts_after=True), "starts_after=True"),
        (Regex("a", trigger=None), "trigger=None"),
        (Regex(b"a"), "a regular expression"),
        (Choice("ab"), "a tuple of texts"),
        (Choice(tuple(f"{number}{'x' * 400}" for number in range(1000))), "there may be 262,144"),
        (StructuralTag(tags=None), "a tuple of Tag"),
        (StructuralTag(tags=(Tag(begin=5, end="x"),)), "tags[0].begin=5: give a text"),
        (StructuralTag(tags=TAGS, triggers=("",)), "an empty trigger"),
        (StructuralTag(tags=(Tag(begin="<", end="x" * 300_000),)), "there may be 262,144"),
        (ToolCalls(tools=None), "a tuple of Tool"),
        (ToolCalls(tools=("x",)), "a tuple of Tool"),
        (ToolCalls(tools=(Tool(name="f", parameters=None),)), "tools[0].parameters=None"),
        (JsonSchema(None), "schema=None"),
        (JsonSchema(b"{}"), "a JSON Schema"),
        (JsonSchema({5: 6}), "texts as names"),
        (JsonSchema({"properties": {5: {}}}), "the name 5: names are texts, so write '5'"),
        (JsonSchema({"items": {5: {}}}), "the member 5"),
        (JsonSchema({"const": "\ud800"}), "half a surrogate pair"),
        (JsonSchema('{"const": "\\ud800"}'), "half a surrogate pair"),
        (Regex("\udfff"), "half a surrogate pair"),
        (Choice(("a", "\ud800")), "half a surrogate pair"),
        (ToolCalls(tools=(Tool(name="\ud800"),)), "half a surrogate pair"),
    ],
)
def test_a_grammar_of_the_wrong_shape_is_refused_with_the_field(make_desk, grammar: Grammar, says: str) -> None:
    with pytest.raises(ParamsError) as refused:
        make_desk().prepare(SamplingParams(grammar=grammar))
    assert says in str(refused.value)


def test_a_value_that_holds_itself_is_refused(make_desk) -> None:
    schema: dict = {"type": "object"}
    schema["properties"] = {"a": schema}
    with pytest.raises(ParamsError, match="no JSON"):
        make_desk().prepare(SamplingParams(grammar=JsonSchema(schema)))


def test_what_the_door_itself_stumbles_over_is_a_refusal(make_desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.sampling.grammar import desk

    def stumbles(*_):
        raise AttributeError("'int' object has no attribute 'startswith'")

    monkeypatch.setattr(desk, "grammar_problems", stumbles)
    with pytest.raises(ParamsError, match="cannot be read"):
        make_desk().prepare(SamplingParams(grammar=Regex("a")))


def test_a_json_object_that_is_not_wanted_is_none() -> None:
    with pytest.raises(ValueError, match="leave the grammar out"):
        as_grammar({"json_object": False})


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"enum": [1, 12345678901234567]}, "12345678901234567, which JSON libraries round"),
        ({"const": {"a": [2**53 + 1]}}, "round"),
        ({"enum": [float("nan")]}, "cannot write"),
        ({"type": "integer", "minimum": 10**20}, "beyond ±2**53"),
        ({"type": "integer", "exclusiveMaximum": 10**400}, "beyond ±2**53"),
        ({"maximum": float("inf")}, "a number is wanted"),
        ({"minimum": float("nan")}, "a number is wanted"),
        ({"multipleOf": 0}, "above 0"),
        ({"type": "string", "maxLength": 10**12}, "2,147,483,647"),
        ({"type": "object", "minProperties": 2}, "0 members are required"),
        ({"type": "object", "required": ["a"], "minProperties": 3}, "name them in required"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}, "written as minimum"),
        ({"type": "number", "exclusiveMaximum": -3, "minimum": -3.5}, "as maximum"),
        ({"allOf": [{"type": "number", "exclusiveMinimum": 2}, {"exclusiveMaximum": 2.5}]}, "as minimum"),
    ],
)
def test_numbers_that_would_be_altered_are_refused(schema: dict, says: str) -> None:
    (problem,) = schema_problems(schema, "llguidance")
    assert says.replace("written as", "as") in problem


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [2**53, -(2**53), 0.1]}, ["9007199254740992", "-9007199254740992", "0.1"], ["9007199254740993"]),
        ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "5"], ["0", "-1", "0.0"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, ["0.1", "1"], ["0", "0.0", "1.1"]),
        ({"type": "number", "exclusiveMaximum": 0, "minimum": -1}, ["-0.1", "-1"], ["0", "-0", "-0.0"]),
        ({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 1}, ["0.6"], ["0.5", "0.50", "1"]),
        (
            {"type": "object", "required": ["a"], "minProperties": 2},
            ['{"a": 1, "b": 2}'],
            ['{"a": 1}', '{"a": 1, "a": 2}'],
        ),
        ({"type": "string", "maxLength": 2**31 - 1}, ['"abc"'], ["5"]),
    ],
)
def test_numbers_that_are_taken_hold(llguidance, vocabulary, schema: dict, good: list[str], bad: list[str]) -> None:
    assert schema_problems(schema, "llguidance") == []
    compiled = llguidance.compile(JsonSchema(schema))
    assert [text for text in good if not allows(compiled, text, vocabulary)] == []
    assert [text for text in bad if allows(compiled, text, vocabulary)] == []


def test_places_stay_short() -> None:
    schema: dict = {"type": "strin"}
    for _ in range(60):
        schema = {"anyOf": [schema]}
    (problem,) = schema_problems(schema, "llguidance")
    assert len(problem) < 200 and problem.startswith("#/anyOf/0") and "anyOf/0/type is 'strin'" in problem


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        (JsonSchema({"$ref": "#"}), "nothing finite matches it"),
        (
            JsonSchema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            "finite",
        ),
        (Ebnf("root ::= root"), "nothing finite"),
        (Regex(r"[^\s\S]"), "nothing finite"),
        (Regex("["), "the regular expression '[' cannot be read: unclosed"),
        (
            JsonSchema({"type": "integer", "multipleOf": 1000003, "minimum": 10, "maximum": 90000000}),
            "lower its numbers",
        ),
        (Ebnf('start: "a" b\nb: "x" ) "y"'), "line 2, column 8"),
        (Ebnf('root ::= "\\uD800"'), "no character"),
        (Ebnf('root ::= "\\x00"'), "control character"),
    ],
)
def test_errors_speak_of_what_was_typed(llguidance, grammar: Grammar, says: str) -> None:
    with pytest.raises(GrammarError) as refused:
        llguidance.compile(grammar)
    text = str(refused.value)
    assert says in text and "NoExtension" not in text and "2(8)" not in text and "(in regex)" not in text


@pytest.mark.parametrize(
    ("gbnf", "good", "bad"),
    [
        (r'root ::= "\u00e9" "\x41" "\U0001F642"', ["éA🙂"], ["e9A"]),
        (r"root ::= [\x41-\x43\u00e9\x5d\x2d]+", ["ABCé]-"], ["D", "\\"]),
        (r'root ::= "\x22" "\x5c" "\x0a"', ['"\\\n'], ["x"]),
        ('root ::= Foo foo\nFoo ::= "a"\nfoo ::= "b"', ["ab"], ["aa", "bb"]),
        ('root ::= a-b a_b  # "not a text\na-b ::= "1"\na_b ::= "2"', ["12"], ["11"]),
        (r"root ::= [\x00-\x08]", ["\x07"], ["a"]),
        (r'root ::= "\\x41"', [r"\x41"], ["A"]),
    ],
)
def test_gbnf_is_read_as_llama_cpp_reads_it(llguidance, vocabulary, gbnf: str, good: list[str], bad: list[str]) -> None:
    compiled = llguidance.compile(Ebnf(gbnf))
    assert [text for text in good if not allows(compiled, text, vocabulary)] == []
    assert [text for text in bad if allows(compiled, text, vocabulary)] == []


def test_a_repeated_member_never_fills_up_min_properties(llguidance, vocabulary) -> None:
    """What is taken cannot be met by writing one member twice."""
    schema = {"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}}, "additionalProperties": False}
    assert schema_problems(schema | {"minProperties": 3}, "llguidance")
    compiled = llguidance.compile(JsonSchema(schema | {"minProperties": 1}))
    assert allows(compiled, json.dumps({"a": None}), vocabulary) and not allows(compiled, "{}", vocabulary)
