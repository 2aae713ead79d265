"""`executor=simulated` beside every feature: it runs, or the feature is refused by its name. And libraries that are missing."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepinfer.cli.main import main

TINY = ("model=v41_tiny", "model.threads=1", "sampling.max_tokens=20", "sampling.seed=1")
SIMULATED = (*TINY, "executor=simulated", "executor.step_time_s=0.5")
FEATURES = [
    ("speculation=dspark",),
    ("speculation=dspark_fixed",),
    ("speculation=ngram", "speculation.verify=rejection"),
    ("scheduler.async_depth=1", "speculation=dspark"),
    ("cache=prefix",),
    ("cache=prefix", "replay.on_hit=exact", "scheduler.async_depth=1"),
    ("replay=compact",),
    ("grammar=none",),
    ("sampling=reproducible",),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_no_feature_changes_what_is_invented(capsys: pytest.CaptureFixture[str]) -> None:
    code, wanted, err = run(capsys, *SIMULATED, "prompt=hi")
    assert code == 0 and len(wanted) > 20 and "tokens are invented" in err
    for feature in FEATURES:
        assert run(capsys, *SIMULATED, "prompt=hi", *feature)[:2] == (0, wanted), feature


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("sampling.regex=yes|no", 2, "nothing would enforce a grammar"),
        ("sampling.logprobs=2", 1, "logprobs=2: a simulation invents tokens"),
        ("sampling.prompt_logprobs=0", 1, "prompt_logprobs=0: a simulation invents tokens"),
    ],
)
def test_what_nobody_can_invent_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], asked: str, code: int, words: str
) -> None:
    found, out, err = run(capsys, *SIMULATED, "prompt=hi", asked)
    assert found == code and words in err and not out.strip()


def test_times_are_those_of_the_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One sequence at a time: a step for the prompt and 19 for the rest, each of half a second that nobody waited for."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    code, out, err = run(
        capsys, *SIMULATED, f"prompts={tmp_path / 'in.jsonl'}", "scheduler.max_num_seqs=1", "cache=prefix"
    )
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0 and "40 tokens in 20.00 s: 2 tokens/s" in err
    assert first["timings"] == {"queue_ms": 0, "first_token_ms": 500, "total_ms": 10_000}
    assert second["timings"] == {"queue_ms": 10_000, "first_token_ms": 10_500, "total_ms": 20_000}
    assert (first["cached_tokens"], first["approximate"]) == (0, False)


def test_a_salt_of_a_line_keeps_its_prefix_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompt = list(range(3, 203))
    lines = [{"prompt_token_ids": prompt, "cache_salt": salt} for salt in ("a", "a", "b")]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = (f"prompts={tmp_path / 'in.jsonl'}", "scheduler.max_num_seqs=1")
    _, out, _ = run(capsys, *SIMULATED, *arguments, "cache=prefix")
    assert [json.loads(line)["cached_tokens"] for line in out.splitlines()] == [0, 128, 0]
    _, out, _ = run(capsys, *SIMULATED, *arguments)
    assert not any("cached_tokens" in line for line in out.splitlines())


@pytest.mark.skipif(find_spec("xgrammar") is not None, reason="xgrammar is installed here")
def test_a_grammar_without_its_library_is_refused_before_anything_is_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, *TINY, "grammar=xgrammar", "prompt=hi")
    assert code == 4 and not out
    assert "grammar=xgrammar" in err and "no xgrammar here" in err and "type: pip install" in err
    assert run(capsys, *SIMULATED, "grammar=xgrammar", "prompt=hi")[0] == 0, "a simulation compiles no grammars"
