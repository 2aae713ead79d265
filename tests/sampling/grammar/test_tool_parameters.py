"""Parameters of tools: each keyword of a text holds in a call, or a strict tool is refused by its place; none is dropped."""

import pytest
from grammar_walks import allows

from deepinfer.sampling.grammar.dsml import loosened
from deepinfer.sampling.grammar.parameters import anchors
from deepinfer.sampling.grammar.problems import grammar_problems
from deepinfer.structured import Tool, ToolCalls

D = "｜DSML｜"
TEXT = {"type": "string"}


def tool(schema: object, *, strict: bool = True, **more: object) -> Tool:
    parameters = {
        "type": "object",
        "properties": {"p": schema},
        "required": ["p"],
        "additionalProperties": False,
        **more,
    }
    return Tool(name="f", parameters=parameters, strict=strict)


def call(value: str, *, text: bool = True) -> str:
    parameter = f'<{D} parameter name="p" string="{str(text).lower()}">{value}</{D} parameter>\n'
    return f'<{D} invoke name="f">\n{parameter}</{D} invoke>\n</{D} calls>'


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({**TEXT, "pattern": "^[a-z]+$", "maxLength": 3}, ["abc"], ["abcd", "AB", ""]),
        ({**TEXT, "pattern": "b", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["b", "acd", "abcd"]),
        ({**TEXT, "pattern": r"^\d+\$"}, ["5$", "5$ and more"], ["5", "x5$"]),
        ({**TEXT, "pattern": r"^\d+\$$"}, ["5$"], ["5", "5$ "]),
        ({**TEXT, "pattern": "^(a|b)$"}, ["a"], ["ab", "c"]),
        ({**TEXT, "pattern": "a|b"}, ["xa", "b"], ["c"]),
        ({**TEXT, "enum": ["a", "bcd", "é\n"], "maxLength": 2}, ["a", "é\n"], ["bcd", "x"]),
        ({"enum": ["ab", "cd"], "pattern": "^a"}, ["ab"], ["cd"]),
        ({**TEXT, "const": "x/y"}, ["x/y"], ["xy"]),
        ({"anyOf": [{**TEXT, "maxLength": 1}, {**TEXT, "enum": ["long"]}]}, ["x", "long"], ["lo"]),
        ({**TEXT, "anyOf": [{"maxLength": 1}, {"pattern": "^y+$"}]}, ["x", "yyy"], ["xx"]),
        ({"$ref": "#/$defs/short", "minLength": 1}, ["x"], ["", "xyz"]),
        ({**TEXT, "minLength": 2}, ["ab", "a</b>"], ["a"]),
    ],
)
def test_keywords_of_a_text_hold_together(llguidance, vocabulary, schema, good: list[str], bad: list[str]) -> None:
    grammar = ToolCalls(tools=(tool(schema, **{"$defs": {"short": {**TEXT, "maxLength": 2}}}),), opened=True)
    assert grammar_problems(grammar, "llguidance") == [] and loosened(grammar.tools[0]) == []
    compiled = llguidance.compile(grammar)
    assert [value for value in good if not allows(compiled, call(value), vocabulary)] == []
    assert [value for value in bad if allows(compiled, call(value), vocabulary)] == []
    assert not allows(compiled, call("7", text=False), vocabulary)


def test_texts_and_other_values_of_one_parameter(llguidance, vocabulary) -> None:
    schema = {"anyOf": [{**TEXT, "maxLength": 2}, {"type": "integer", "maximum": 5, "minimum": 0}, {"type": "null"}]}
    compiled = llguidance.compile(ToolCalls(tools=(tool(schema),), opened=True))
    assert allows(compiled, call("ab"), vocabulary) and not allows(compiled, call("abc"), vocabulary)
    assert allows(compiled, call("null", text=False), vocabulary) and not allows(
        compiled, call("7", text=False), vocabulary
    )
    objects = {"oneOf": [{"type": "object", "properties": {"k": {"const": one}}, "required": ["k"]} for one in "ab"]}
    compiled = llguidance.compile(ToolCalls(tools=(tool(objects),), opened=True))
    assert allows(compiled, call('{"k": "a"}', text=False), vocabulary) and not allows(compiled, call("a"), vocabulary)


@pytest.mark.parametrize(
    ("schema", "more", "says"),
    [
        ({**TEXT, "format": "date"}, {}, ["#/properties/p", "format"]),
        ({**TEXT, "allOf": [{"maxLength": 3}]}, {}, ["allOf"]),
        ({"anyOf": [{**TEXT, "maxLength": 3}], "maxLength": 5}, {}, ["maxLength stands in two places"]),
        ({**TEXT, "pattern": "^a|b$"}, {}, ["put alternatives in a group"]),
        ({**TEXT, "pattern": "(^a)"}, {}, ["ends of the whole"]),
        ({**TEXT, "pattern": "(?=a)b"}, {}, ["look-around"]),
        ({"$ref": "#/properties/q"}, {}, ["$ref="]),
        (TEXT, {"anyOf": [{"required": ["q"]}]}, ["#/anyOf", "only properties and required"]),
        (TEXT, {"required": ["q"]}, ["'q' is required and not in properties"]),
        (False, {}, ["'p' is required"]),
        (TEXT, {"type": "string"}, ["#/type", "an object"]),
    ],
)
def test_what_cannot_be_told_apart_is_refused_or_said(llguidance, vocabulary, schema, more, says: list[str]) -> None:
    (problem,) = grammar_problems(ToolCalls(tools=(tool(schema, **more),)), "llguidance")
    assert problem.startswith("parameters of the tool f: ") and all(word in problem for word in says)
    loose = tool(schema, strict=False, **more)
    assert all(word in loosened(loose)[0] for word in says)
    free = llguidance.compile(ToolCalls(tools=(loose,), opened=True))
    assert allows(free, call("anything at all"), vocabulary)


def test_a_function_without_parameters_is_called_with_none(llguidance, vocabulary) -> None:
    compiled = llguidance.compile(ToolCalls(tools=(Tool(name="f"),), opened=True))
    assert allows(compiled, f'<{D} invoke name="f">\n</{D} invoke>\n</{D} calls>', vocabulary)
    assert not allows(compiled, call("x"), vocabulary)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("^a$", (True, True)),
        (r"a\$", (False, False)),
        (r"a\\$", (False, True)),
        ("[$^]", (False, False)),
        ("[]$]", (False, False)),
        ("a|b", (False, False)),
        ("^a|b", None),
        ("^(a|b)", (True, False)),
        ("a$b", None),
        ("", (False, False)),
    ],
)
def test_anchors(pattern: str, found: tuple[bool, bool] | None) -> None:
    assert anchors(pattern) == found
