"""A bad grammar in the configuration is refused before anything is built, at every door."""

import shlex
from pathlib import Path

import pytest

from deepinfer.api import LLM
from deepinfer.cli.main import main
from deepinfer.config.compose import load_with_choices
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.engine import build
from deepinfer.engine.asked_grammar import refuse_bad_grammar
from deepinfer.plan.resolve import resolve

TINY = ("model=v41_tiny", "hardware=cpu", "scheduler.max_num_seqs=2", "model.max_model_len=256")
BAD = [
    ("sampling.json_schema=notjson", "is no JSON"),
    ("sampling.json_schema=5", "json_schema"),
    ('sampling.json_schema={"type": "strnig"}', "strnig"),
    ("sampling.json_schema={type: object}", "is no JSON"),
    ("sampling.regex=(", "regular expression"),
    ("sampling.regex=(?=a)b", "look"),
    ("sampling.ebnf=foo", ""),
    ("sampling.ebnf=start: nothing", ""),
]
GOOD = [
    'sampling.json_schema={"type": "object"}',
    "sampling.regex=[0-9]{3}",
    'sampling.ebnf=root ::= "yes" | "no"',
    "sampling.ebnf=start: /yes|no/",
    "sampling.choice=[yes,no]",
]


def check(*overrides: str) -> None:
    spec, choices = load_with_choices(*TINY, *overrides)
    refuse_bad_grammar(resolve(spec, probe(spec), choices))


def no_engine(*arguments: object, **keywords: object) -> None:
    raise AssertionError("an engine was built")


@pytest.mark.parametrize(("override", "says"), BAD, ids=[override for override, _ in BAD])
def test_bad_ones_are_refused_and_what_is_offered_is_taken(override: str, says: str) -> None:
    with pytest.raises(Refused) as refused:
        check(override)
    (problem,) = refused.value.problems
    assert problem.asked == override and problem.code == 2 and says in problem.found
    check(*shlex.split(problem.fix))


@pytest.mark.parametrize("override", GOOD)
def test_good_ones_pass(override: str) -> None:
    check(override)


def test_a_mapping_in_yaml_is_offered_as_json() -> None:
    with pytest.raises(Refused) as refused:
        check("sampling.json_schema={type: object, required: [a]}")
    (problem,) = refused.value.problems
    assert problem.fix == """'sampling.json_schema={"type": "object", "required": ["a"]}'"""


def test_every_door_says_so_before_it_builds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "build_graph", no_engine)
    (tmp_path / "in.jsonl").write_text('"Hi"\n')
    doors = (
        ("generate", "prompt=Hi"),
        ("generate", f"prompts={tmp_path / 'in.jsonl'}", f"output={tmp_path / 'out.jsonl'}"),
    )
    for door in doors:
        assert main([*door, *TINY, "sampling.regex=("]) == 2
        told = capsys.readouterr().err
        assert "sampling.regex=(" in told and "type: " in told and "every answer would fail" in told
    assert not (tmp_path / "out.jsonl").exists()
    assert main(["bench", *TINY, "sampling.regex=("]) in (2, 3) and "sampling.regex=" in capsys.readouterr().err
    with pytest.raises(Refused, match="regex"):
        LLM(*TINY, "sampling.regex=(")


def test_a_simulation_has_none() -> None:
    with pytest.raises(Refused, match="simulat"):
        check("sampling.regex=a", "executor=simulated")
