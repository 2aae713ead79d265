"""`deepinfer bench` on the tiny model: it measures what was asked, says what was not, and writes the usual keys."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer.cli.bench import duration, fitted, length
from deepinfer.cli.bench_load import concurrency_of, prefix_counts, speculation_counts
from deepinfer.cli.bench_report import report
from deepinfer.cli.main import main
from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.config.tasks import Bench
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.types import Figure

SMALL = ("workload.prompt_tokens=9", "workload.output_tokens=4", "workload.cached_share=0", "task.num_requests=3")
NO_SERVER: Any = {"target": "engine", "base_url": None, "api_key_file": None, "arrivals": "poisson", "turns": 1}
NO_SLICE: Any = (
    NO_SERVER | {"slice": "none"} | {f"slice_{key}": () for key in ("sequences", "contexts", "prompts", "routing")}
)
USUAL = (
    "date backend model_id num_prompts request_rate max_concurrency duration completed total_input_tokens "
    "total_output_tokens request_throughput output_throughput total_token_throughput"
).split()


def test_a_line_with_the_keys_that_benchmarks_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", *SMALL, "scheduler.max_num_seqs=2", f"out={tmp_path}"]
    assert main([*command, "format=json"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    assert "deepinfer: 3 requests of 9 + 4 tokens after 2 to warm up: about " in printed.err
    row: dict[str, Any] = json.loads(line)
    names = [
        f"{stat}_{name}_ms"
        for stat in ("mean", "median", "std", "p90", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ]
    assert set(USUAL) | set(names) <= row.keys()
    assert (row["completed"], row["failed"], row["max_concurrency"], row["request_rate"]) == (3, 0, 2, "inf")
    assert (row["total_input_tokens"], row["total_output_tokens"]) == (27, 12)  # answers run to their full length
    assert row["output_throughput"] == pytest.approx(12 / row["duration"])
    assert 0 < row["mean_ttft_ms"] < row["mean_e2el_ms"] <= row["p99_e2el_ms"] <= row["duration"] * 1e3
    assert row["mean_e2el_ms"] == pytest.approx(row["mean_ttft_ms"] + 3 * row["mean_tpot_ms"])
    assert row["engine"]["steps"] == 8 and row["notes"] == []  # two at once, then one: four steps each
    assert row["overrides"][0] == SMALL[0] and row["choices"]["task"] == "bench"
    assert len(row["numerics_digest"]) == 16 and row["versions"]["torch"]
    measured = {figure["name"]: figure for figure in row["headline"]}
    assert {figure["label"] for figure in row["headline"]} == {"measured"}
    assert measured["tokens_per_s_per_gpu"]["value"] == pytest.approx(row["total_token_throughput"])
    assert measured["tokens_per_s_per_user"]["value"] == pytest.approx(1e3 / row["mean_tpot_ms"])
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "3 requests of 9 + 4 tokens, up to 2 at once" in text and "Time to first token" in text
    (estimate,) = [line for line in text.splitlines() if line.startswith("tokens_per_s_per_user")]
    assert estimate.split()[-1] in ("roofline", "calibrated") and len(estimate.split()) == 4
    kept = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert kept[0] == row and len(kept) == 2


@pytest.mark.parametrize(
    ("overrides", "sizes", "notes"),
    [
        (("workload.prompt_tokens=9", "workload.output_tokens=4", "workload.cached_share=0"), (9, 4), []),
        (("workload.prompt_tokens=9k", "workload.output_tokens=5"), (4091, 5), ["room for 4,096", "keeps no prefix"]),
        (("workload.prompt_tokens=9k", "workload.output_tokens=9k"), (2048, 2048), ["2,048 + 2,048"]),
        (
            ("workload.prompt_tokens=300", "workload.output_tokens=5", "workload.cached_share=0.5", "cache=prefix"),
            (300, 5),
            ["begin with the same 128 tokens"],
        ),
        (
            ("workload.prompt_tokens=100", "workload.output_tokens=5", "workload.cached_share=1", "cache=prefix"),
            (100, 5),
            ["share no whole block"],
        ),
        (
            ("workload.prompt_tokens=9", "workload.output_tokens=4", "workload.cached_share=0", "speculation=ngram"),
            (9, 4),
            ["are no texts"],
        ),
        (("cache.num_blocks=1", "scheduler.max_num_seqs=1", "workload=code"), (64, 64), ["room for 128"]),
    ],
)
def test_what_does_not_fit_is_cut_and_said(
    overrides: tuple[str, ...], sizes: tuple[int, int], notes: list[str]
) -> None:
    spec = load("task=bench", *overrides)
    plan, workload, told = fitted(spec, probe(spec), {})
    shared = 128 if "300" in overrides[0] else 0
    assert (workload.prompt_tokens, workload.output_tokens) == sizes
    assert workload.cached_share * sizes[0] == pytest.approx(shared)
    assert all(any(note in line for line in told) for note in notes) and bool(told) == bool(notes)
    assert sum(sizes) <= min(plan.model.max_model_len, plan.capacity.tokens)


def test_concurrency() -> None:
    task = Bench(num_requests=1, warm_up=0, concurrency="auto", request_rate=None, seed=0, **NO_SLICE)
    assert concurrency_of(task, 32) == 32
    open_loop = Bench(num_requests=1, warm_up=0, concurrency="auto", request_rate=2.0, seed=0, **NO_SLICE)
    assert concurrency_of(open_loop, 32) is None
    assert (
        concurrency_of(Bench(num_requests=1, warm_up=0, concurrency=5, request_rate=2.0, seed=0, **NO_SLICE), 32) == 5
    )


def test_how_long_it_will_take_is_told_before() -> None:
    workload = load("workload.prompt_tokens=100", "workload.output_tokens=20").workload
    assert isinstance(workload, SteadyWorkload)
    rate = (Figure(name="tokens_per_s_per_gpu", value=10.0, unit="tokens/s", label="calibrated"),)
    task = Bench(num_requests=1000, warm_up=2, concurrency="auto", request_rate=None, seed=0, **NO_SLICE)
    told = length(task, workload, rate, 2)
    assert told.startswith("1,000 requests of 100 + 20 tokens after 2 to warm up: about 1.7 hours by the plan's")
    slow = Bench(num_requests=1000, warm_up=2, concurrency="auto", request_rate=0.001, seed=0, **NO_SLICE)
    assert length(slow, workload, rate, 2).endswith("they arrive over about 277.5 hours")
    one = Bench(num_requests=1, warm_up=0, concurrency="auto", request_rate=None, seed=0, **NO_SLICE)
    assert length(one, workload, (), 1) == "1 request of 100 + 20 tokens after 0 to warm up"
    assert [duration(each) for each in (0.1, 40.4, 720, 12600)] == ["1 s", "40 s", "12 minutes", "3.5 hours"]


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (("workload=trace", f"workload.path={__file__}"), 1, "requests of one size only"),
        (("executor=simulated",), 2, "a simulation invents its times"),
        (("hardware=h200", "parallel=ep8"), 4, "hardware=cpu"),
        (("format=mermaid",), 2, "format=json"),
        (("task.num_requests=0",), 2, "task.num_requests"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], code: int, words: str) -> None:
    assert main(["bench", *overrides]) == code
    printed = capsys.readouterr()
    assert words in printed.err and printed.out == ""


def test_what_speculation_brought_is_told_by_depth(capsys: pytest.CaptureFixture[str]) -> None:
    before = SimpleNamespace(verify_rounds=10, checked_at=[10, 5, 0], accepted_at=[6, 2, 0])
    after = SimpleNamespace(verify_rounds=30, checked_at=[30, 13, 0], accepted_at=[21, 6, 0])
    counts = speculation_counts(before, after)
    assert counts == {
        "rounds": 20,
        "accepted_length": 1 + 19 / 20,
        "checked_at": [20, 8, 0],
        "accepted_at": [15, 4, 0],
        "acceptance_at": [0.75, 0.5, None],
    }
    assert speculation_counts(before, before) is None
    assert main(["bench", *SMALL, "format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["speculation"] is None and "drafts" not in report(row)
    words = [line.split() for line in report(row | {"speculation": counts}).splitlines()]
    assert ["Tokens", "of", "a", "round", "with", "drafts", "1.95"] in words
    assert ["Accepted", "/", "checked", "0.75", "0.5", "-"] in words


def test_what_the_prefix_cache_gave_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The warm-up leaves what all prompts share, so every measured request hits."""
    load = ("workload.prompt_tokens=140", "workload.output_tokens=3", "workload.cached_share=1", "task.num_requests=3")
    assert main(["bench", *load, "cache=prefix", "task.warm_up=1", "scheduler.async_depth=1", "format=json"]) == 0
    printed = capsys.readouterr()
    row = json.loads(printed.out)
    assert "begin with the same 128 tokens" in printed.err and row["notices"] == []
    assert {key: row["prefix"][key] for key in ("queries", "hits", "query_tokens", "saved_tokens", "hit_rate")} == {
        "queries": 3,
        "hits": 3,
        "query_tokens": 420,
        "saved_tokens": 384,
        "hit_rate": 1.0,
    }
    assert row["prefix"]["saved_share"] == pytest.approx(384 / 420)
    assert row["engine"]["steps_ahead"] > 0 and 0 <= row["host_share"] < 1
    words = [line.split() for line in report(row).splitlines()]
    assert ["Prompt", "tokens", "not", "computed", "384"] in words
    bare = SimpleNamespace(prefix=None)
    assert prefix_counts(bare, bare) is None and "prefix cache" not in report(row | {"prefix": None})


def test_warm_up_requests_leave_the_shared_prefix_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    """The first leaves the blocks, the second the state where prompts part: together they would both come too early."""
    load = (
        "workload.prompt_tokens=300",
        "workload.output_tokens=3",
        "workload.cached_share=0.5",
        "task.num_requests=3",
    )
    assert main(["bench", *load, "cache=prefix", "task.warm_up=2", "cache.num_blocks=40", "format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["prefix"]["hits"], row["prefix"]["saved_tokens"]) == (3, 3 * 128)


def test_tokens_that_come_together_are_one_latency(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SMALL, "format=json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["tokens_per_itl"] == 1 and "at once" not in report(row).split("End-to-end")[0].split("\n", 1)[1]
    (line,) = [
        line for line in report(row | {"tokens_per_itl": 2.25}).splitlines() if line.startswith("Inter-token latency")
    ]
    assert line.startswith("Inter-token latency, 2.25 tokens at once")
