"""The Python of docs/usage.md runs as it stands, and its lines of a file of prompts are taken."""

import json
import re
from pathlib import Path

import pytest

from deepinfer.config.facts import shipped_folder
from deepinfer.interfaces import SamplingParams
from deepinfer.serving.batch_file import Line, job_of
from deepinfer.serving.jobs import Desk

USAGE = (Path(__file__).parents[2] / "docs" / "usage.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}(?: file=\S+)?\n(.*?)```", USAGE, re.DOTALL)
    return found


@pytest.mark.skipif(
    not list(shipped_folder("v41_tiny").glob("*.safetensors")), reason="the trained weights are not here"
)
def test_the_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python"), "usage.md", "exec"), {})
    told = capsys.readouterr().out
    assert "42 ()" in told and told.rstrip().endswith("a text")


def test_the_lines_of_a_file_are_taken() -> None:
    from deepinfer.sampling.tokenizer import BpeTokenizer

    tokenizer = BpeTokenizer(shipped_folder("v41_tiny") / "tokenizer.json")
    desk = Desk(tokenizer, vocab_size=3584, max_model_len=4096, bos_token_id=0, eos_token_ids=[1])
    lines = block("json").splitlines()
    jobs = [job_of(Line(number, text.encode(), "d"), desk, SamplingParams()) for number, text in enumerate(lines)]
    assert len(jobs) == 4 and [job.error for job in jobs] == [None] * 4
    assert json.loads(lines[1])["id"] == "sort-1" and jobs[1].params.max_tokens == 32
