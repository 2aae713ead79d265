"""What the table of keywords says, held against what each backend does."""

import json
from pathlib import Path

import pytest
from grammar_walks import allows
from keyword_cases import CASES, Case

from deepinfer.sampling.grammar.backend import GrammarBackend, GrammarError
from deepinfer.sampling.grammar.json_keywords import ANNOTATIONS, ENFORCED, FORMATS, REFUSED, schema_problems
from deepinfer.structured import JsonSchema


def is_allowed(compiled, value, vocabulary) -> bool:
    """In one of the spacings that people and libraries write."""
    texts = {json.dumps(value, ensure_ascii=False, separators=pair) for pair in ((",", ":"), (", ", ": "))}
    return any(allows(compiled, text, vocabulary) for text in texts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.keyword}-{CASES.index(case)}")
def test_a_keyword_is_enforced_or_refused_by_name(backend: GrammarBackend, vocabulary, case: Case) -> None:
    problems = schema_problems(case.schema, backend.name)
    if case.keyword not in ENFORCED[backend.name]:
        assert any(f"{case.keyword} is not enforced by {backend.name}" in problem for problem in problems)
        return
    if problems:  # the keyword is enforced, but not with every value
        assert backend.name == "xgrammar" and case.keyword == "pattern"
        return
    compiled = backend.compile(JsonSchema(case.schema))
    wrong = [value for value in case.invalid if is_allowed(compiled, value, vocabulary)]
    missing = [value for value in case.valid if not is_allowed(compiled, value, vocabulary)]
    assert not wrong, "values that the schema forbids may be written"
    assert not missing, "values that the schema allows cannot be written"


def test_every_keyword_has_a_case() -> None:
    with_case = {case.keyword for case in CASES} | {"$defs"}  # which $ref needs
    assert set().union(*ENFORCED.values()) <= with_case
    rare = {"$recursiveRef", "$recursiveAnchor", "$vocabulary", "contentMediaType", "contentSchema", "dependencies"}
    assert set(REFUSED) - rare - {"$dynamicAnchor"} <= with_case
    assert not set(REFUSED) & (set().union(*ENFORCED.values()) | ANNOTATIONS)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_enforced(backend: GrammarBackend, vocabulary, name: str) -> None:
    good = {
        "date-time": "2024-02-29T12:30:00Z",
        "time": "12:30:00Z",
        "date": "2024-02-29",
        "duration": "P3DT4H",
        "email": "a.b@example.org",
        "hostname": "example.org",
        "ipv4": "192.168.0.1",
        "ipv6": "2001:db8::1",
        "uuid": "123e4567-e89b-12d3-a456-426614174000",
    }
    compiled = backend.compile(JsonSchema({"type": "string", "format": name}))
    assert is_allowed(compiled, good[name], vocabulary)
    assert not is_allowed(compiled, "no! such thing", vocabulary)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "objekt"}, ["#/type", "'objekt'", "'object'"]),
        ({"type": "object", "requird": ["a"]}, ["requird", "did you mean required"]),
        ({"type": "string", "format": "uri-template"}, ["uri-template", "date-time"]),
        ({"properties": {"a": {"type": "str"}}}, ["#/properties/a/type", "'str'", "write 'string'"]),
        ({"items": [{"type": "string"}]}, ["prefixItems"]),
        ({"$ref": "https://example.org/x.json"}, ["$defs"]),
        ({"x-guidance": {"lenient": True}, "type": "string"}, ["x-guidance"]),
        ({"minLength": -1, "type": "string"}, ["#/minLength", "from 0"]),
        ({"enum": []}, ["#/enum", "list"]),
        ({"anyOf": {}}, ["#/anyOf", "list of schemas"]),
        ("object", ["#", "an object, true or false"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(schema: object, says: list[str]) -> None:
    (problem,) = schema_problems(schema, "llguidance")
    assert all(word in problem for word in says)


def test_all_problems_come_at_once_and_notes_are_none() -> None:
    schema = {"not": {}, "properties": {"a": {"uniqueItems": True}, "b": {"type": "strin"}}, "title": "T", "x-mine": 1}
    assert len(schema_problems(schema, "llguidance")) == 3


def test_a_schema_that_nests_too_deep_is_refused_at_the_door() -> None:
    schema: dict = {"type": "string"}
    for _ in range(100):
        schema = {"type": "array", "items": schema}
    assert "deeper than 64" in schema_problems(schema, "llguidance")[0]


def test_what_cannot_be_satisfied_does_not_compile(llguidance: GrammarBackend) -> None:
    for schema in (False, {"type": "string", "minLength": 5, "maxLength": 2}, {"$ref": "#/$defs/none"}):
        with pytest.raises(GrammarError):
            llguidance.compile(JsonSchema(schema))


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[3].joinpath("docs/structured_output.md").read_text("utf-8")
    table = page.partition("<!-- keywords -->")[2].partition("<!-- end of keywords -->")[0]
    told = {}
    for row in table.strip().splitlines()[2:]:
        keyword, *cells = (cell.strip(" `") for cell in row.strip("|").split("|"))
        told[keyword] = tuple(cell == "enforced" for cell in cells)
    known = {*set().union(*ENFORCED.values()), *REFUSED}
    assert told == {
        keyword: tuple(keyword in ENFORCED[name] for name in ("llguidance", "xgrammar")) for keyword in known
    }
