"""Benchmarks of several GPUs say what they miss where there are none, and their scripts run over gloo."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CHECKS = {
    "gpu_expert_dispatch": ["--tokens", "1", "--rounds", "1"],
    "gpu_context_prefill": ["--tokens", "40", "--chunk", "32", "--rounds", "1"],
    "gpu_two_ranks": ["--sequences", "2", "--context", "20", "--steps", "1", "--rounds", "1"],
}


@pytest.mark.parametrize("found", [0, 1])
@pytest.mark.parametrize("name", CHECKS)
def test_one_gpu_is_refused_in_a_sentence(name: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with pytest.raises(
        SystemExit, match=f"^{name} was asked for all GPUs of this host and finds {found}; .*--device cpu"
    ):
        import_module(name).main()


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_script_runs_on_the_cpu(name: str) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--device", "cpu", *CHECKS[name]]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (line,) = (json.loads(text) for text in said.splitlines())
    assert line["figure"] == name and line["ranks"] == 2 and line["backend"] == "gloo"
    assert all(value > 0 for key, value in line.items() if key.endswith(("_us", "_ms")))
