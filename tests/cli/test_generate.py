"""The main job on a toy model (see toy_llm): what goes to stdout, what to stderr, and how it ends."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy_llm import make_llm, make_tokenizer

from deepinfer.api import LLM
from deepinfer.cli.generate import DEMO
from deepinfer.cli.main import main
from deepinfer.cli.termination import Termination
from deepinfer.interfaces import SamplingParams

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "fixtures" / "golden" / "tiny_a"


def _toy(folder: Path, asked: frozenset[str]) -> LLM:
    llm = make_llm(make_tokenizer(folder))
    llm.asked = asked
    return llm


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command line on the toy model: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LLM, "from_plan", classmethod(lambda cls, plan, **options: _toy(tmp_path, **options)))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([f"model.path={GOLDEN}", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def records(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_prompt_is_taken_verbatim_and_its_answer_alone_goes_to_stdout(run) -> None:
    code, out, err = run("prompt=It's 5, right? ${x} [a,b]")
    assert (code, out) == (0, "abcdefghijklmnopqrstuvwxyz\n")
    assert err.splitlines()[0].startswith("plan ") and len(err.splitlines()) == 3


def test_a_dash_reads_stdin(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    assert run("prompt=-")[:2] == (0, "abcdefghijklmnopqrstuvwxyz\n")


def test_thinking_shows_both_parts_and_says_what_the_format_overrides(run) -> None:
    code, out, err = run("prompt=x", "task.thinking=true")
    assert code == 0 and out.startswith("<think>\n") and out.count("</think>\n") == 1
    assert "temperature=0 becomes 1" in err


def test_what_the_command_line_sets_stays(run) -> None:
    code, _, err = run("prompt=x", "task.thinking=true", "sampling.temperature=0")
    assert code == 0 and "becomes" not in err and "temperature=0 stays as asked" in err and "recommends 1 " in err


def test_log_probabilities_are_shown_a_token_a_line(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def made(cls, plan, asked) -> LLM:
        llm = _toy(tmp_path, asked)
        llm.default_params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=0)
        return llm

    monkeypatch.setattr(LLM, "from_plan", classmethod(made))
    code, out, err = run("prompt=x", "sampling.logprobs=2")
    tokens = [line for line in err.splitlines() if line.startswith("token ")]
    assert (code, out) == (0, "abc\n") and len(tokens) == 3
    assert "'a' -0.0" in tokens[0] and tokens[0].count("'") == 4
    assert (
        sum(line.startswith("prompt ") for line in err.splitlines()) == 4
    )  # all but BOS of BOS, User, x, Assistant, </think>


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_prompt_is_refused(run, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    for prompt in (text, "-"):
        code, out, err = run(f"prompt={prompt}")
        assert code == 2 and out == "" and "nothing to answer" in err


@pytest.mark.parametrize("options", [["executor=simulated"], ["hardware=virtual"]])
def test_a_simulation_runs_and_says_what_it_is(run, options: list[str]) -> None:
    """What the plan decides counts, not what was asked."""
    code, out, err = run("prompt=x", *options)
    assert code == 0 and out and "tokens are invented" in err


def test_a_prompt_that_cannot_run_is_one_sentence(run) -> None:
    code, out, err = run(f"prompt={'x' * 600}")
    assert code == 1 and out == "" and "512" in err.splitlines()[-1] and "Traceback" not in err


def test_five_prompts_each_with_its_answer_and_one_line_of_speed(run) -> None:
    code, out, _ = run()
    lines = out.splitlines()
    assert code == 0 and [line[2:] for line in lines if line.startswith("> ")] == list(DEMO) and len(DEMO) == 5
    assert lines.count("abcdefghijklmnopqrstuvwxyz") == 5
    assert "tokens/s" in lines[-1] and sum("tokens/s" in line for line in lines) == 1


def test_a_file_becomes_records_in_order_and_bad_lines_stop_nothing(run, tmp_path: Path) -> None:
    lines = [
        '"a"',
        "{",
        '{"prompt_token_ids": [0, 70], "sampling": {"max_tokens": 3}, "id": "k"}',
        "",
        '{"prompt": "b"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    code, out, err = run("prompts=in.jsonl", "output=out.jsonl")
    found = records((tmp_path / "out.jsonl").read_text())
    assert code == 1 and out == "" and "4 results (1 with errors)" in err
    assert [item["line"] for item in found] == [1, 2, 3, 5]
    assert found[0]["text"] == found[3]["message"]["content"] == "abcdefghijklmnopqrstuvwxyz"
    assert "no JSON" in found[1]["error"] and found[2]["id"] == "k" and len(found[2]["token_ids"]) == 3
    assert found[0]["finish_reason"] == "stop" and found[0]["timings"]["total_ms"] > 0


def test_without_output_records_go_to_stdout(run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n"b"\n')
    code, out, _ = run("prompts=in.jsonl")
    assert code == 0 and [item["line"] for item in records(out)] == [1, 2]


def test_a_second_run_does_only_what_is_missing(run, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n"b"\n')
    run("prompts=in.jsonl", "output=out.jsonl")
    whole = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text('"a"\n"b"\n"c"\n')
    _, _, err = run("prompts=in.jsonl", "output=out.jsonl")
    assert "2 of 3 results are there already" in err and "1 result (0 with errors)" in err
    assert (tmp_path / "out.jsonl").read_text().startswith(whole) and len(
        records((tmp_path / "out.jsonl").read_text())
    ) == 3


def test_a_run_that_is_complete_says_so_and_remembers_its_errors(run, tmp_path: Path) -> None:
    for text, expected in (('"a"\n', 0), ('"a"\n{\n', 1)):
        (tmp_path / "in.jsonl").write_text(text)
        assert run("prompts=in.jsonl", "output=out.jsonl")[0] == expected
        code, _, err = run("prompts=in.jsonl", "output=out.jsonl")
        assert code == expected and "all there already" in err and "tokens/s" not in err
    assert "2 results (1 with errors)" in err
    (tmp_path / "in.jsonl").write_text('"a"\n{\n"c"\n')
    assert run("prompts=in.jsonl", "output=out.jsonl")[0] == 1


def test_notices_of_a_file_are_said_once(run, tmp_path: Path) -> None:
    line = '{"prompt": "json", "sampling": {"top_p": 0.5}, "response_format": {"type": "json_object"}}\n'
    (tmp_path / "in.jsonl").write_text(line * 3)
    code, out, err = run("prompts=in.jsonl")
    assert code == 0 and all(len(item["notices"]) == 2 for item in records(out))
    assert err.count("response_format is not enforced") == err.count("top_p=0.5 stays as asked") == 1


@pytest.mark.parametrize(("lines", "options"), [('"z"\n', []), ('"a"\n', ["sampling.top_k=3"])])
def test_an_output_of_another_input_or_other_settings_is_refused(
    run, tmp_path: Path, lines: str, options: list
) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n')
    run("prompts=in.jsonl", "output=out.jsonl")
    before = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "in.jsonl").write_text(lines)
    code, _, err = run("prompts=in.jsonl", "output=out.jsonl", *options)
    assert code == 2 and "name another output=" in err and (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["prompts=none.jsonl"], "no such file"),
        (["prompts=."], "a folder"),
        (["prompts=-"], "prompt=-"),
        (["prompts=in.jsonl", "output=nowhere/out.jsonl"], "nowhere"),
        (["prompts=in.jsonl", "output=in.jsonl"], "very file"),
        (["output=out.jsonl"], "no prompts="),
        (["prompts=in.jsonl", "output=/dev/full"], "not a regular file"),
        (["prompts=/dev/null"], "not a regular file"),
        (["prompts=none.jsonl", "kernels=triton"], "kernels=triton"),
        (["grammar=xgrammar", "prompts=none.jsonl"], "no such file"),
        (["sampling.seed=x", "prompts=none.jsonl"], "no such file"),
        (["prompts=none.jsonl", "cache.memory_bytes=1", "executor=distributed"], "executor=distributed"),
    ],
)
def test_paths_that_cannot_be_are_config_errors(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], hint: str
) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n')
    monkeypatch.setattr(LLM, "from_plan", None)  # nothing is built for them
    code, out, err = run(*arguments)
    assert code == 2 and hint in err and "Traceback" not in err and out == ""
    assert (tmp_path / "in.jsonl").read_text() == '"a"\n'


def test_hardware_that_is_not_here_is_planned_and_refused_in_one_sentence(
    run, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["hardware=ascend950", "parallel=ep64"])
    out, err = capsys.readouterr()
    assert code == 4 and "v41_flash" in out and "64 × Huawei Ascend 950" in err and "no accelerator" in err
    assert len(err.splitlines()) == 1 and "no code for Huawei Ascend 950" in err and "type hardware=cpu" in err


def test_sigterm_ends_like_ctrl_c_with_a_code_of_its_own(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def made(cls, plan, asked) -> LLM:
        llm = _toy(tmp_path, asked)
        steps = iter(range(3))
        llm.engine.executor.on_step = lambda: next(steps, None) == 2 and signal.raise_signal(signal.SIGTERM)
        return llm

    monkeypatch.setattr(LLM, "from_plan", classmethod(made))
    (tmp_path / "in.jsonl").write_text('"a"\n' * 30)
    code, _, err = run("prompt=x")
    assert code == 143 and err.splitlines()[-1] == "deepinfer: terminated"
    code, _, err = run("prompts=in.jsonl", "output=out.jsonl")
    assert code == 143 and "goes on from" in err.splitlines()[-1] and "Traceback" not in err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.setattr(LLM, "from_plan", classmethod(lambda cls, plan, asked: _toy(tmp_path, asked)))
    assert run("prompts=in.jsonl", "output=out.jsonl")[0] == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 30


def test_sigterm_is_heard_where_ctrl_c_is_ignored() -> None:
    """As in a background job of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Termination() as termination, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert termination.asked
    finally:
        signal.signal(signal.SIGINT, before)


SLOW_RUN = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
sys.path.insert(0, {tests!r})
from toy_llm import make_llm, make_tokenizer
from deepinfer.cli.generate_file import run_file
from deepinfer.config.specs import Sampling
folder = Path({folder!r})
llm = make_llm(make_tokenizer(folder))
llm.engine.executor.on_step = lambda: time.sleep({pause_s})
plan = SimpleNamespace(numerics_digest="toy", sampling=None)
sys.exit(run_file(llm, plan, SimpleNamespace(prompts=str(folder / "in"), output=str(folder / "out")), thinking=False))
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_to_the_same_file(tmp_path: Path, blow: signal.Signals) -> None:
    (tmp_path / "in").write_text("\n".join(f'{{"prompt_token_ids": [0, {69 + i % 20}]}}' for i in range(60)))

    def start(pause_s: float) -> subprocess.Popen:
        script = SLOW_RUN.format(tests=str(TESTS), folder=str(tmp_path), pause_s=pause_s)
        return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)

    process = start(0.03)  # seconds a step: time enough to look at it in its midst
    out = tmp_path / "out"
    while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") >= 10):
        time.sleep(0.005)
    os.kill(process.pid, blow)
    _, err = process.communicate(timeout=240)
    cut = out.read_bytes()
    num_done = cut.count(b"\n")
    assert 10 <= num_done < 60
    if blow is signal.SIGINT:
        assert process.returncode == 130 and "goes on from" in err and "Traceback" not in err
    process = start(0)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0 and f"{num_done} of 60" in err
    found = records(out.read_text())
    assert out.read_bytes().startswith(cut[: cut.rindex(b"\n") + 1]) and [item["line"] for item in found] == list(
        range(1, 61)
    )
    texts = {item["text"] for item in found if item["line"] % 20 == 1}
    assert len(texts) == 1 and all(item["finish_reason"] in ("stop", "length") for item in found)


def test_pipes_get_no_escape_codes(run, tmp_path: Path) -> None:
    """Neither stdout nor stderr carries escape codes when they are no terminals."""
    (tmp_path / "in.jsonl").write_text('"a"\n')
    for arguments in ([], ["prompt=x"], ["prompts=in.jsonl"]):
        _, out, err = run(*arguments)
        assert "\x1b" not in out + err and "\r" not in out + err
