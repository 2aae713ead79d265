"""`deepinfer bench task.target=serve` against a server that runs: usual keys, conversations, traces, and what cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deepinfer.cli.main import main

if TYPE_CHECKING:
    from running_server import Running

SIZES = ("workload.prompt_tokens=24", "workload.output_tokens=5", "workload.cached_share=0")
USUAL = (
    "date backend model_id num_prompts request_rate max_concurrency duration completed failed total_input_tokens "
    "total_output_tokens request_throughput request_goodput output_throughput total_token_throughput "
    "max_output_tokens_per_s max_concurrent_requests input_lens output_lens ttfts itls start_times errors"
).split()


def benched(capsys: pytest.CaptureFixture[str], running: Running, *overrides: str) -> dict[str, Any]:
    command = ["bench", "task.target=serve", f"task.base_url={running.url}", "format=json", *overrides]
    assert main(command) == 0
    (line,) = capsys.readouterr().out.splitlines()
    row: dict[str, Any] = json.loads(line)
    return row


def test_a_line_with_the_keys_that_plotters_read(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = ("workload.ttft_s=100", "workload.tokens_per_s_per_user=1e-3")
    row = benched(capsys, server, *SIZES, *goal, "task.num_requests=5", "task.concurrency=2", f"out={tmp_path}")
    names = [f"{stat}_{name}_ms" for stat in ("mean", "median", "std", "p50", "p90", "p95", "p99")
             for name in ("ttft", "tpot", "itl", "e2el")]  # fmt: skip
    assert set(USUAL) | set(names) <= row.keys()
    assert (row["completed"], row["failed"], row["num_prompts"], row["max_concurrency"]) == (5, 0, 5, 2)
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (120, 25)
    assert row["input_lens"] == [24] * 5 and row["output_lens"] == [5] * 5 and row["max_concurrent_requests"] == 2
    assert row["output_throughput"] == pytest.approx(25 / row["duration"])
    assert row["request_goodput"] == pytest.approx(row["request_throughput"])
    assert 0 < row["mean_ttft_ms"] < row["mean_e2el_ms"] <= row["p99_e2el_ms"] <= row["duration"] * 1e3
    assert row["p50_itl_ms"] == row["median_itl_ms"] and row["served_model"] == server.model
    assert json.loads((tmp_path / "bench_serve.jsonl").read_text()) == row
    assert (tmp_path / "bench_serve.png").read_bytes().startswith(b"\x89PNG")


def test_a_goal_that_nobody_reaches(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    row = benched(capsys, server, *SIZES, "task.num_requests=2", "workload.ttft_s=1us", "task.warm_up=0")
    assert row["request_goodput"] == 0


def test_turns_find_what_was_said_in_the_cache(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("workload.prompt_tokens=400", "workload.output_tokens=6", "workload.cached_share=0.8", "task.warm_up=0")
    row = benched(capsys, server, *sizes, "task.turns=3", "task.num_requests=6", "task.concurrency=2", "task.seed=5")
    assert "2 conversations of 3 turns: 314 tokens, then 80 more a turn" in row["notes"][0]
    assert sorted(row["input_lens"]) == [314, 314, 400, 400, 486, 486]
    assert row["cache_hit_share"] >= 0.5  # in whole blocks of 128


def test_an_open_loop_and_a_trace_keep_their_clocks(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = benched(
        capsys,
        server,
        *SIZES,
        "task.num_requests=4",
        "task.request_rate=50",
        "task.arrivals=constant",
        "task.warm_up=0",
    )
    starts = [start - row["start_times"][0] for start in row["start_times"]]
    assert starts == pytest.approx([0, 0.02, 0.04, 0.06], abs=1e-6)  # their waiting counts from then on
    assert (row["request_rate"], row["max_concurrency"], row["arrivals"]) == (50, None, "constant")
    trace = tmp_path / "trace.jsonl"
    rows: list[dict[str, Any]] = [
        {"timestamp": 9000, "input_length": 20, "output_length": 3, "hash_ids": [4]},
        {"arrival_s": 9.05, "prompt": "Once upon a time", "output_tokens": 4},
        {"arrival_s": 9.07, "messages": [{"role": "user", "content": "Hi"}], "output_tokens": 2},
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    row = benched(capsys, server, "workload=trace", f"workload.path={trace}", "task.warm_up=0")
    assert row["output_lens"] == [3, 4, 2] and row["input_lens"][0] == 20
    assert [start - row["start_times"][0] for start in row["start_times"]] == pytest.approx([0, 0.05, 0.07], abs=1e-6)


def test_what_cannot_work_is_told(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["bench", "task.target=serve", *SIZES]
    assert main([*base, "task.base_url=http://127.0.0.1:9"]) == 7
    assert "task.base_url=http://127.0.0.1:9" in capsys.readouterr().err
    assert main([*base, f"task.base_url={server.url}/nowhere"]) == 7
    assert "HTTP 404" in capsys.readouterr().err
    assert main([*base, "task.base_url=nonsense"]) == 2
    assert main(["bench", "task.target=serve", "workload=trace", f"task.base_url={server.url}"]) == 2
    assert "workload.path=FILE" in capsys.readouterr().err
    assert main([*base, f"task.base_url={server.url}", "task.api_key_file=/nowhere/key"]) == 2
