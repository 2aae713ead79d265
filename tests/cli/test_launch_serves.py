"""A launched world that serves: HTTP is where its rank 0 is, and ends well when the launcher tells all ranks to stop."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest
from launched import free_port, launch, none_left, started


@pytest.mark.slow
def test_two_ranks_serve_and_drain(tmp_path: Path) -> None:
    port, words = free_port(), ("model=v41_tiny", "hardware=cpu", "parallel=dp2", "task.run=serve")
    settings = (f"serving.port={port}", f"launcher.master_port={free_port()}")
    folder, url = launch(tmp_path / "launch", *words, *settings), f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.TransportError:
            return False

    with started([folder / "run.sh"], logs=tmp_path / "logs") as (ranks,):
        ranks.until(is_ready)
        body = {"model": "v41_tiny", "prompt": "Once", "max_tokens": 8, "temperature": 0}
        answers = {httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(3)}
        assert len(answers) == 1 and answers != {""}
        assert httpx.get(f"{url}/v1/plan").json()["serving"]["port"] == port
        ranks.process.send_signal(signal.SIGTERM)
        assert ranks.ended(30) == 0, "a drain in time is what it was told to do"
        assert "told to stop" in ranks.err and "closed" in ranks.err and "Traceback" not in ranks.err
    assert none_left(folder)
