"""`deepinfer run_batch` and what a server says when it is busy or lost: no line is done by that."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli import serve_start
from deepinfer.cli.main import main
from deepinfer.serving.http.service import Service

FAKE = ("executor=simulated", "executor.step_time_s=0", "scheduler.max_num_seqs=4")


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Service], None]], None]:
    """changed(change): every service of a batch is changed so before it opens; its engine runs in this process."""
    made = partial(serve_start.service_of, in_process=True)

    def use(change: Callable[[Service], None]) -> None:
        def service_of(*arguments: Any, **named: Any) -> Service:
            service = made(*arguments, **named)
            change(service)
            return service

        monkeypatch.setattr(serve_start, "service_of", service_of)

    use(lambda service: None)
    return use


def batch(folder: Path, number: int, **body: Any) -> list[str]:
    """The command of a file of so many requests, and the file."""
    asked = [
        {"prompt": [5, 6 + each], "max_tokens": 12, "seed": 1, "ignore_eos": True} | body for each in range(number)
    ]
    rows = [
        {"custom_id": str(each), "method": "POST", "url": "/v1/completions", "body": one}
        for each, one in enumerate(asked)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["run_batch", f"input={folder}/in.jsonl", f"output={folder}/out.jsonl", *FAKE]


def said(folder: Path) -> list[tuple[str, Any]]:
    records = map(json.loads, (folder / "out.jsonl").read_text().splitlines())
    return [(record["custom_id"], record["response"]["body"]["choices"]) for record in records]


@pytest.mark.usefixtures("changed")
def test_limits_of_a_shared_server_refuse_no_line(tmp_path: Path) -> None:
    limits = ("serving.max_waiting=16", "serving.max_streams=4", "serving.max_held_bytes=64")
    assert main([*batch(tmp_path, 6, n=8), *limits, "task.concurrency=6"]) == 0
    assert [name for name, _ in said(tmp_path)] == [str(number) for number in range(6)]


@pytest.mark.usefixtures("changed")
def test_what_a_shared_server_keeps_is_left_alone(tmp_path: Path) -> None:
    command = batch(tmp_path, 0)
    body = {"model": "v41_tiny", "input": "Hello", "max_output_tokens": 16}
    row = {"custom_id": "0", "method": "POST", "url": "/v1/responses", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    assert main([*command, f"serving.responses_path={tmp_path}/kept.sqlite"]) == 0
    assert (tmp_path / "out.jsonl").read_text() and not (tmp_path / "kept.sqlite").exists()


def test_a_lost_engine_stops_the_run_and_the_next_one_completes_it(
    changed: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    assert main(batch(whole, 24)) == 0

    def loses(service: Service) -> None:
        def lose(state: str) -> None:
            if state == "ready":
                engine, left = service.served.engine, iter(range(30))
                step = engine.step
                engine.step = lambda: step() if next(left, None) is not None else broken()

        service.line.on_state = lose

    def broken() -> None:
        raise FloatingPointError("a fault in the step")

    changed(loses)
    command = batch(cut, 24)
    capsys.readouterr()
    assert main(command) == 4
    told = capsys.readouterr().err
    done = said(cut)
    assert 0 < len(done) < 24 and f"{24 - len(done)} lines without an answer" in told and "a fault in the step" in told
    assert not (cut / "out.errors.jsonl").read_text()
    changed(lambda service: None)
    assert main(command) == 0
    assert said(cut) == said(whole)


def test_a_fault_of_ours_costs_its_line(
    changed: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(service: Service) -> None:
        ask, seen = service.ask, iter(range(100))

        async def asked(*arguments: Any, **named: Any) -> Any:
            if next(seen) == 1:
                raise ZeroDivisionError("a fault of ours")
            return await ask(*arguments, **named)

        service.ask = asked  # type: ignore[method-assign]

    changed(faulty)
    assert main([*batch(tmp_path, 4), "task.concurrency=1"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert [name for name, _ in said(tmp_path)] == ["0", "2", "3"]
    (failed,) = map(json.loads, (tmp_path / "out.errors.jsonl").read_text().splitlines())
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("1", 500)
