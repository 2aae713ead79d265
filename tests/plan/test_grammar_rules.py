"""What answers must look like is said once in a configuration, and somebody enforces it."""

import msgspec
import pytest

from deepinfer.config.compose import load
from deepinfer.config.errors import Refused
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve
from deepinfer.sampling.params import from_config
from deepinfer.structured import Choice, Ebnf, JsonSchema, Regex


def plan_of(*overrides: str):
    spec = load(*overrides)
    return resolve(spec, probe(spec))


@pytest.mark.parametrize(
    ("override", "grammar"),
    [
        ("sampling.regex=yes|no", Regex("yes|no")),
        ('sampling.json_schema={"type": "integer"}', JsonSchema('{"type": "integer"}')),
        ('sampling.ebnf=root ::= "a"', Ebnf('root ::= "a"')),
        ("sampling.choice=[red,dark blue]", Choice(("red", "dark blue"))),
        ("sampling.n=2", None),
    ],
)
def test_a_key_of_sampling_is_the_grammar_of_every_request(override: str, grammar) -> None:
    params = from_config(plan_of(override).sampling)
    assert params.grammar == grammar and isinstance(params, msgspec.Struct)


def test_two_grammars_or_nobody_to_enforce_one_are_refused() -> None:
    with pytest.raises(Refused, match="one grammar") as two:
        plan_of("sampling.regex=a", "sampling.choice=[b]")
    assert "sampling.regex" in str(two.value)
    with pytest.raises(Refused, match="nothing would enforce it") as nobody:
        plan_of("sampling.regex=a", "grammar=none")
    assert "grammar=llguidance" in str(nobody.value)


@pytest.mark.parametrize("task", ["bench", "tune"])
def test_a_load_under_a_grammar_is_refused_before_it_runs(task: str) -> None:
    with pytest.raises(Refused, match="leave the key out") as refused:
        plan_of(f"task={task}", "sampling.regex=a+")
    assert "sampling.regex" in str(refused.value) and "ignore_eos" not in str(refused.value)
