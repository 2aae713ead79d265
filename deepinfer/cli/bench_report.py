"""The table of a bench: the figures that all serving benchmarks print, and the plan's estimates beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepinfer.cli.sweep_table import number
from deepinfer.cli.sweep_told import counted
from deepinfer.engine.latencies import LATENCIES
from deepinfer.plan.cost.types import Figure

_SHOWN = ("mean", "median", "p90", "p99")
_COUNTS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration": "Duration (s)",
    "total_input_tokens": "Input tokens",
    "total_output_tokens": "Output tokens",
    "request_throughput": "Requests/s",
    "output_throughput": "Output tokens/s",
    "total_token_throughput": "Input and output tokens/s",
}
_PREFIX = {
    "queries": "Requests that asked the prefix cache",
    "hits": "Requests that hit",
    "hit_rate": "Hits / requests",
    "saved_tokens": "Prompt tokens not computed",
    "saved_share": "Not computed / prompt tokens",
}
_DRAFTS = {
    "checked_at": "Checked",
    "accepted_at": "Accepted with all before it",
    "acceptance_at": "Accepted / checked",
}
WIDTH = 40


def headline(result: dict[str, Any]) -> tuple[Figure, ...]:
    """The measured figures under the names that plans use, so that sweeps and searches read both alike."""
    found = {
        "tokens_per_s_per_gpu": (result["total_token_throughput"] / result["num_ranks"], "tokens/s"),
        "tokens_per_s_per_user": (1e3 / result["mean_tpot_ms"] if result["mean_tpot_ms"] else None, "tokens/s"),
        "ttft_s": (result["mean_ttft_ms"] / 1e3 if result["mean_ttft_ms"] is not None else None, "s"),
    }
    return tuple(
        Figure(name=name, value=value, unit=unit, label="measured")
        for name, (value, unit) in found.items()
        if value is not None
    )


def report(result: dict[str, Any]) -> str:
    """The table."""
    counts = [_prefix(result.get("prefix")), _drafts(result.get("speculation"))]
    parts = [_load(result), latency_lines(result, _SHOWN), *counts, _beside_estimates(result)]
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _load(result: dict[str, Any]) -> Iterator[str]:
    sent = counted(result["num_prompts"], "request")
    sizes = f"{sent} of {result['input_len']:,} + {result['output_len']:,} tokens"
    limit = result["max_concurrency"]
    at_once = "any number at once" if limit is None else f"up to {limit} at once"
    rate = "" if result["request_rate"] == "inf" else f", {result['request_rate']:g} arrive in a second"
    yield f"{result['model_id']} on {result['hardware']}: {sizes}, {at_once}{rate}"
    for key, words in _COUNTS.items():
        if key != "failed" or result[key]:
            yield f"{words:<{WIDTH}}{cell(result[key])}"


def latency_lines(result: Mapping[str, Any], shown: Sequence[str]) -> Iterator[str]:
    """Milliseconds of each latency, a column for each of the statistics that are `shown`."""
    yield f"{'ms':<{WIDTH}}" + "".join(f"{statistic:>12}" for statistic in shown)
    at_once = result["tokens_per_itl"] or 1.0
    for key, words in LATENCIES.items():
        if key == "itl" and at_once > 1:
            words += f", {number(at_once)} tokens at once"
        yield f"{words:<{WIDTH}}" + "".join(cell(result[f"{statistic}_{key}_ms"]) for statistic in shown)


def _prefix(counts: dict[str, Any] | None) -> Iterator[str]:
    if counts is None:
        return
    for key, words in _PREFIX.items():
        yield f"{words:<{WIDTH}}{cell(counts[key])}"


def _drafts(counts: dict[str, Any] | None) -> Iterator[str]:
    if counts is None:
        return
    yield f"{'Tokens of a round with drafts':<{WIDTH}}{cell(counts['accepted_length'])}"
    yield f"{'Draft number':<{WIDTH}}" + "".join(f"{number:>12}" for number in range(1, len(counts["checked_at"]) + 1))
    for key, words in _DRAFTS.items():
        yield f"{words:<{WIDTH}}" + "".join(cell(value) for value in counts[key])


def _beside_estimates(result: dict[str, Any]) -> Iterator[str]:
    expected = {figure["name"]: figure for figure in result["estimates"]}
    yield f"{'':<{WIDTH}}{'measured':>12}" + (f"{'estimate':>12}" if expected else "")
    for figure in headline(result):
        estimate = expected.get(figure.name)
        full = "" if result["request_rate"] == "inf" else ", a full engine"
        of = ", one prompt on an idle engine" if figure.name == "ttft_s" else full
        beside = f"{cell(estimate['value'])}  {estimate['label']}{of}" if estimate else ""
        yield f"{figure.name:<{WIDTH}}{cell(figure.value)}{beside}"


def cell(value: float | None) -> str:
    """One figure of the table."""
    return f"{'-' if value is None else number(value):>12}"
