"""A thousand random command lines: a plan or a refusal of the right class that names what is wrong, never anything else."""

import random
import re
import shlex
import subprocess
import sys
from functools import cache

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from override_lists import Argument, command_line, views

from deepinfer.cli.main import checked, with_verb
from deepinfer.config import argv
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import PlanErrors

LINES = 1000
INNER = re.compile(
    r"Traceback|Lexer|NoViableAlt|HYDRA_FULL_ERROR|full_key|object_type|reference_type|OverrideParse|DictConfig"
)


@cache
def drawn(seed: int) -> list[list[Argument]]:
    """The command lines of a seed; a line that would ask for help or a sweep is none of these."""
    rng = random.Random(seed)
    return [command_line(rng) for _ in range(LINES)]


@pytest.mark.sample(24)
@pytest.mark.parametrize("number", range(LINES))
def test_a_plan_or_a_refusal(number: int, sample_seed: int) -> None:
    arguments = drawn(sample_seed)[number]
    try:
        outcome(arguments)
    except Refused as refused:
        typed = " ".join(argument.text or "''" for argument in arguments)
        text = str(refused)
        assert refused.exit_code in (ExitCode.CONFIG, ExitCode.PLAN, ExitCode.WEIGHTS, ExitCode.MEMORY), text
        assert not INNER.search(text), text
        for problem in refused.problems:
            assert problem.asked and problem.found, text
            assert problem.found == "no such verb" or is_typeable(problem.fix), problem
            if not isinstance(refused, PlanErrors):
                assert says_where(problem, typed), (problem, typed)
        missing = [argument for argument in arguments if argument.names and argument.names not in text]
        assert not missing or isinstance(refused, PlanErrors), text
    else:
        assert not [argument for argument in arguments if argument.names], "a mistake was taken without a word"


def outcome(arguments: list[Argument]) -> None:
    """Everything that `deepinfer plan` does with a line before it prints."""
    line = argv.parse([argument.text for argument in arguments])
    spec, choices = checked(with_verb(line))
    resolve(spec, probe(spec), choices)


def says_where(problem: Problem, typed: str) -> bool:
    """Whether the part that was asked for leads back to something that was typed."""
    key = re.split(r"[=\[ ]", problem.asked.lstrip("+~-"), maxsplit=1)[0]
    return problem.asked in typed or key in typed or key.rpartition(".")[2] in typed or key.partition(".")[0] in typed


def is_typeable(fix: str) -> bool:
    """Whether a shell takes what is offered apart into arguments that can be read; nothing, or a gap to fill in, is fine."""
    if not fix or "…" in fix:
        return True
    line = argv.parse([word for word in shlex.split(fix) if word not in ("deepinfer", "put", "it", "in", "quotes")])
    parser = OverridesParser.create()
    return all(parser.parse_overrides([ascii_only(text)]) for text in line.overrides)


def ascii_only(text: str) -> str:
    """Letters beyond ASCII are read as any other letter, though not by Hydra itself."""
    return re.sub(r"[^\x00-\x7f]", "x", text)


@pytest.mark.sample(5)
@pytest.mark.parametrize("number", range(0, LINES, 8))
def test_at_the_command_line(number: int, sample_seed: int) -> None:
    """The same as a process of its own, flags and all: nothing is left out but another verb, and a byte that no process
    can be given."""
    rng = random.Random(f"{sample_seed} {number}")
    texts = [argument.text.replace("\x00", "") for argument in drawn(sample_seed)[number]]
    texts = [text for text in texts if not text.startswith(argv.VERBS) and _typeable(text)]
    if rng.random() < 0.5:
        at = rng.randint(0, len(texts))
        texts[at:at] = views(rng)
    if {"-m", "--multirun"} & set(argv.parse(texts).flags):
        pytest.skip("a sweep has tests of its own")
    words = [text.encode("utf-8", "surrogateescape") if _is_bytes(text) else text for text in texts]
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer", "plan", *words], capture_output=True, check=False, timeout=120
    )
    said = done.stderr.decode("utf-8", "replace")
    assert done.returncode in (0, 2, 3, 5, 6), said
    assert not INNER.search(said), said
    assert bool(said) == bool(done.returncode), said


def _is_bytes(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text)


def _typeable(text: str) -> bool:
    """No process can be given other surrogates than those that stand for single bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in text) or all(
        "\udc80" <= character <= "\udcff" for character in text if "\ud800" <= character <= "\udfff"
    )
