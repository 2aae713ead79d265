"""A launched world serves as `deepinfer serve` does: with the sampling that somebody chose, and after the same checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer.cli import serve
from deepinfer.cli.main import main
from deepinfer.cli.serve_launched import serve_launched
from deepinfer.config.errors import Refused
from deepinfer.plan.types import Plan

TINY = ("model=v41_tiny", "hardware=cpu", "executor=simulated", "task.run=serve", "serving.port=0")


def launched(folder: Path, *words: str) -> Plan:
    assert main(["launch", *TINY, *words, f"out={folder}"]) == 0
    return Plan.from_json((folder / "plan.json").read_bytes())


def test_the_sampling_that_was_chosen_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = launched(tmp_path / "out", "sampling.temperature=0.3")
    assert plan.asked_sampling == ("temperature",)
    services = []

    def run_service(service, listener, on_listening):
        listener.close()
        services.append(service)
        return 0

    monkeypatch.setattr(serve, "run_service", run_service)
    assert serve_launched(plan, 0) == (0, True)  # nothing was started
    served = services[0].line._start(lambda doing: None)
    assert served.asked == {"temperature"} and served.defaults.temperature == 0.3
    served.engine.close()


def test_traces_that_go_nowhere_are_refused(tmp_path: Path) -> None:
    plan = launched(tmp_path / "out", "serving.otlp_endpoint=ftp://nowhere")
    with pytest.raises(Refused, match="otlp_endpoint"):
        serve_launched(plan, 0)
