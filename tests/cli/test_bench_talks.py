"""Conversations of a load: their sizes, times and shared beginnings, drawn and from traces."""

import json
from pathlib import Path

import numpy as np
import pytest

from deepinfer.cli.bench_serve_load import fitted_sizes
from deepinfer.cli.bench_talks import drawn_talks, read_trace, spread, turn_sizes
from deepinfer.config.compose import load
from deepinfer.config.workloads import SteadyWorkload


@pytest.mark.parametrize(
    ("prompt", "output", "share", "turns"), [(1000, 50, 0.95, 8), (900, 10, 0.5, 2), (77, 5, 0.3, 1)]
)
def test_turns_have_the_mean_prompt_that_was_asked(prompt: int, output: int, share: float, turns: int) -> None:
    sizes = turn_sizes(prompt, output, share, turns)
    prompts = [sizes.first + number * (sizes.added + sizes.output) for number in range(turns)]
    assert abs(np.mean(prompts) - prompt) <= 1
    assert turns == 1 or sizes.added == round((1 - share) * prompt)
    assert sizes.longest == prompts[-1] + output


def test_turns_that_alone_are_longer_than_the_prompt_are_refused_with_how_many_fit() -> None:
    with pytest.raises(ValueError, match="at most 4 turns fit"):
        turn_sizes(100, 10, 0.5, 9)
    assert turn_sizes(100, 10, 0.5, 4).first >= 1


def test_talks_share_what_they_are_asked_to_share_and_nothing_else() -> None:
    sizes, rng = turn_sizes(64, 8, 0.5, 3), np.random.default_rng(0)
    one, other = drawn_talks(2, sizes, 3000, rng, beginning=[1, 2, 3])
    assert one.turns[0].new[:3] == other.turns[0].new[:3] == [1, 2, 3]
    assert one.turns[0].new != other.turns[0].new
    assert [len(turn.new) for turn in one.turns] == [sizes.first, sizes.added, sizes.added]


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_arrivals(arrivals: str) -> None:
    talks = drawn_talks(400, turn_sizes(4, 1, 0, 1), 10, np.random.default_rng(1))
    spread(talks, 8.0, arrivals, np.random.default_rng(2))
    due_s = [talk.due_s or 0.0 for talk in talks]
    gaps_s = np.diff(due_s)
    assert due_s[0] == 0 and gaps_s.mean() == pytest.approx(1 / 8, rel=0.2)
    assert gaps_s.std() == pytest.approx(0 if arrivals == "constant" else 1 / 8, abs=0.03)


def test_a_workload_too_long_is_cut_and_said() -> None:
    workload = load("workload=agentic").workload
    assert isinstance(workload, SteadyWorkload)
    sizes, notes = fitted_sizes(workload, 6, 4096)
    assert sizes.longest <= 4096 and "there is room for 4,096" in notes[0]
    small = load("workload=agentic", "workload.prompt_tokens=600", "workload.output_tokens=8").workload
    assert isinstance(small, SteadyWorkload)
    assert fitted_sizes(small, 6, 4096)[1] == []


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return path


def test_a_trace_keeps_times_and_shared_blocks(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.jsonl",
        {"timestamp": 5000, "input_length": 700, "output_length": 4, "hash_ids": [1, 2]},
        {"timestamp": 5250, "input_length": 600, "output_length": 9, "hash_ids": [1, 3]},
        {"timestamp": 6000, "input_length": 9000, "output_length": 4, "hash_ids": []},
    )
    talks, notes = read_trace(path, 10, 2048, 3000, seed=0)
    assert [talk.due_s for talk in talks] == [0, 0.25, 1]
    first, second, third = (talk.turns[0] for talk in talks)
    assert (len(first.new), first.output_tokens, len(second.new)) == (700, 4, 600)
    assert first.new[:512] == second.new[:512] and first.new[512:600] != second.new[512:]
    assert len(third.new) + third.output_tokens == 2048 and "1 of 3 requests" in notes[0]
    assert read_trace(path, 10, 2048, 3000, seed=0) == (talks, notes)
    assert len(read_trace(path, 2, 2048, 3000, seed=0)[0]) == 2


def test_a_trace_of_texts_and_one_that_is_wrong(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    path = write(
        tmp_path / "texts.jsonl",
        {"arrival_s": 2, "prompt": "Once", "output_tokens": 5},
        {"messages": chat, "output_tokens": 5},
        {"prompt_tokens": 3, "output_tokens": 5},
    )
    talks, _ = read_trace(path, 10, 100, 50, seed=0)
    assert [talk.turns[0].new for talk in talks[:2]] == ["Once", chat] and len(talks[2].turns[0].new) == 3
    assert [talk.due_s for talk in talks] == [0, None, None]
    for row, told in (({"prompt_tokens": 3}, "output_tokens"), ({"output_tokens": 2}, "prompt_tokens"), ([], "object")):
        with pytest.raises(ValueError, match=told):
            read_trace(write(tmp_path / "bad.jsonl", row), 10, 100, 50, seed=0)
    with pytest.raises(ValueError, match="holds no request"):
        read_trace(write(tmp_path / "none.jsonl"), 10, 100, 50, seed=0)
