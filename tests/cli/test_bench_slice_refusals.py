"""What `deepinfer bench task.slice=rank` refuses and what it says instead: each remedy can be typed."""

import importlib
from pathlib import Path

import pytest

from deepinfer.cli.main import main
from deepinfer.config.errors import ExitCode

TINY = ("task.slice=rank", "model=v41_tiny", "model.weights=dummy", "hardware=cpu", "cost=roofline")
SMALL = (
    "task.slice_sequences=[2]",
    "task.slice_contexts=[150]",
    "task.slice_prompts=[]",
    "task.slice_routing=[balanced]",
    "speculation=none",
)


def typed_after(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words)
    err = capsys.readouterr().err
    return code, err, err.rpartition("type: ")[2].strip()


def test_a_refusal_spells_out_the_plan_that_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench task.slice=rank task.slice_prompts=[1Ki] model.weights=dummy parallel=ep64 cost=roofline"
    for hardware in ("h200", "b200"):
        code, err, fix = typed_after([*words.split(), f"hardware={hardware}"], capsys)
        assert code == ExitCode.DEVICE and err.startswith("deepinfer: 1 problem:") and "task." not in fix
        assert fix.startswith("deepinfer plan ") and main(fix.split()[1:]) == 0 and capsys.readouterr().out


def test_a_chip_without_code_is_refused_for_that_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, err, fix = typed_after(["bench", "task.slice=rank", "hardware=b200", "model.weights=checkpoint"], capsys)
    assert code == ExitCode.DEVICE and "1 problem" in err and "no code for NVIDIA B200" in err
    assert fix == "hardware=h200 parallel=ep64"


def test_experts_that_leave_a_remainder_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, err, fix = typed_after(["bench", *TINY, "parallel=ep8"], capsys)
    assert code == ExitCode.PLAN and "4 draft experts of v41_tiny over 8 ranks" in err and fix == "parallel=ep4"


def test_a_cpu_must_be_asked_for_and_says_beforehand_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, err, fix = typed_after(["bench", "task.slice=rank", "model=v41_tiny", "model.weights=dummy"], capsys)
    assert code == ExitCode.DEVICE and "minutes" in err and fix == "hardware=cpu"
    assert main(["bench", *TINY, "parallel=ep2", *SMALL]) == 0
    printed = capsys.readouterr()
    assert "1 point to time, decode 1 and prefill 0" in printed.err and "ops plain torch" in printed.err
    assert "planned, not counted on a CPU" in printed.out and "0.00 GB" not in printed.out


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("plan explain=task.slice", "deepinfer bench --help"),
        ("plan task.slice=rank", "deepinfer bench task.slice=rank …"),
        ("bench task.slice=foo", "task.slice=rank"),
        ("bench task.slice=rank task.slice_routing=[zipf,skewed]", "task.slice_routing=[balanced,skewed]"),
        ("bench task.slice=rank task.slice_sequences=[0,8]", "task.slice_sequences=[1,8]"),
    ],
)
def test_what_to_type_for_a_key_of_the_slice(words: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, found = typed_after(words.split(), capsys)
    assert code == ExitCode.CONFIG and found == fix


def test_the_help_tells_of_the_slice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "task.slice=none   rank: no load is sent" in capsys.readouterr().out


def test_a_run_on_a_gpu_that_is_not_here_says_how_to_get_its_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hardware=h200", "model=v41_tiny", "model.weights=dummy"]) == ExitCode.DEVICE
    told = capsys.readouterr().err
    assert "deepinfer doctor hardware=h200 tells how" in told
    assert ("pip install -e '.[sm90]' brings" in told) == ("no nvidia-cuda-nvrtc" in told or "no triton" in told)
    assert main(["generate", "hardware=gb200", "parallel=ep8"]) == ExitCode.DEVICE
    assert "pip install" not in capsys.readouterr().err


def test_ceilings_of_another_device_do_not_bear_the_name_of_a_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    another, h200 = importlib.import_module("chip_sheet").another_chip, ["nvidia", "h200"]
    assert another("cpu", "cpu", ["cpu"], "cpu") == another("h200", "cuda", h200, "sm90") == ""
    for chip, device, words, architecture in (
        ("h200", "cpu", ["cpu"], "cpu"),
        ("h100", "cuda", h200, "sm90"),
        ("h200", "cuda", ["nvidia", "a100"], "sm80"),
        ("cpu", "cuda", h200, "sm90"),
        ("h200", "cuda", ["nvidia", "gh200", "480gb"], "sm90"),
    ):
        assert "nothing was measured" in another(chip, device, words, architecture)
