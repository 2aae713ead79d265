"""Figures of a load over HTTP under the names that other serving benchmarks write, and their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.cli.bench_report import WIDTH, cell, latency_lines
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.engine.latencies import figures

if TYPE_CHECKING:
    from deepinfer.cli.bench_drive import Served
    from deepinfer.config.workloads import Workload
    from deepinfer.engine.load import TimedRequest

PERCENTILES = (25, 50, 75, 90, 95, 99)
_SHOWN = ("mean", "median", "std", "p90", "p99")
_COUNTS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "duration": "Duration (s)",
    "total_input_tokens": "Input tokens",
    "total_output_tokens": "Output tokens",
    "request_throughput": "Requests/s",
    "request_goodput": "Requests/s that kept what was asked",
    "output_throughput": "Output tokens/s",
    "total_token_throughput": "Input and output tokens/s",
    "max_concurrent_requests": "Most requests at once",
    "max_output_tokens_per_s": "Most output tokens in a second",
    "cache_hit_share": "Prompt tokens from the cache",
    "accept_length": "Tokens of a round with drafts",
    "spec_decode_acceptance_rate": "Accepted / checked drafts",
}


def client_figures(served: Sequence[Served], duration_s: float, workload: Workload) -> dict[str, Any]:
    """Counts, throughputs and latencies as clients saw them; `input_lens`, `ttfts` … hold one entry a request that was
    answered, in seconds, `itls` a list of each."""
    done = [each for each in served if each.timed.error is None]
    timed = [each.timed for each in served]
    found: dict[str, Any] = dict(figures(timed, duration_s))
    found["num_prompts"] = len(served)
    if done and all(each.prompt_tokens for each in done):  # a text has as many tokens as its server says
        found["total_input_tokens"] = sum(each.prompt_tokens for each in done)
        found["total_token_throughput"] = (found["total_input_tokens"] + found["total_output_tokens"]) / duration_s
        found["cache_hit_share"] = sum(each.cached_tokens for each in done) / found["total_input_tokens"]
    for name, values_ms in _samples_ms([each.timed for each in done]).items():
        cut = np.percentile(values_ms, PERCENTILES) if len(values_ms) else [None] * len(PERCENTILES)
        found |= {f"p{p}_{name}_ms": None if ms is None else float(ms) for p, ms in zip(PERCENTILES, cut)}
    found |= _over_time([each.timed for each in done])
    found["request_goodput"] = _goodput(done, duration_s, workload)
    return found | {
        "input_lens": [each.prompt_tokens or len(each.timed.prompt_ids) for each in done],
        "output_lens": [each.timed.num_tokens for each in done],
        "ttfts": [each.timed.ttft_s for each in done],
        "itls": [each.timed.itl_s for each in done],
        "start_times": [each.timed.started_s for each in done],
        "errors": [each.timed.error for each in served if each.timed.error],
    }


def server_figures(counts: Mapping[str, float]) -> dict[str, Any]:
    """Of what the server's metrics counted meanwhile: how many drafts it checked and accepted; nothing where it told none."""
    drafts = counts.get("spec_decode_num_drafts_total", 0.0)
    checked = counts.get("spec_decode_num_draft_tokens_total", 0.0)
    accepted = counts.get("spec_decode_num_accepted_tokens_total", 0.0)
    if not drafts:
        return {}
    length = 1 + accepted / drafts
    return {
        "accept_length": length,  # SGLang's name; vLLM's follow
        "spec_decode_acceptance_length": length,
        "spec_decode_acceptance_rate": accepted / checked if checked else None,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(checked),
        "spec_decode_accepted_tokens": int(accepted),
    }


def _samples_ms(done: Sequence[TimedRequest]) -> dict[str, np.ndarray]:
    samples_s = {
        "ttft": [each.ttft_s for each in done],
        "tpot": [each.tpot_s for each in done if each.tpot_s is not None],
        "itl": [gap for each in done for gap in each.itl_s],
        "e2el": [each.e2el_s for each in done],
    }
    return {name: np.array(values_s) * 1e3 for name, values_s in samples_s.items()}


def _over_time(done: Sequence[TimedRequest]) -> dict[str, Any]:
    """How many requests were under way at once, and the tokens of the best second."""
    if not done:
        return {"max_concurrent_requests": 0, "max_output_tokens_per_s": 0.0}
    times = sorted([(each.started_s, 1) for each in done] + [(each.token_s[-1], -1) for each in done])
    most = int(np.cumsum([step for _, step in times]).max())
    news_s = np.concatenate([np.array(each.token_s) for each in done])
    weights = np.concatenate([np.full(len(each.token_s), each.num_tokens / len(each.token_s)) for each in done])
    seconds = np.bincount((news_s - news_s.min()).astype(np.int64), weights=weights)
    return {"max_concurrent_requests": most, "max_output_tokens_per_s": float(seconds.max())}


def _goodput(done: Sequence[Served], duration_s: float, workload: Workload) -> float | None:
    """Requests a second that kept workload.ttft_s and workload.tokens_per_s_per_user; None where neither is asked for."""
    if not isinstance(workload, SteadyWorkload):
        return None
    ttft_s, rate = workload.ttft_s, workload.tokens_per_s_per_user
    if ttft_s is None and rate is None:
        return None

    def is_good(each: TimedRequest) -> bool:
        slow = rate is not None and each.tpot_s is not None and each.tpot_s > 1 / rate
        return not slow and (ttft_s is None or each.ttft_s <= ttft_s)

    return sum(is_good(each.timed) for each in done) / duration_s


def serve_report(result: Mapping[str, Any]) -> str:
    """The table."""
    return "\n\n".join("\n".join(part) for part in (_load(result), latency_lines(result, _SHOWN)))


def _load(result: Mapping[str, Any]) -> Iterator[str]:
    limit, rate = result["max_concurrency"], result["request_rate"]
    at_once = "any number at once" if limit is None else f"up to {limit} at once"
    by_clock = "" if rate == "inf" else f", {rate:g} arrive in a second ({result['arrivals']})"
    yield f"{result['served_model']} at {result['base_url']}: {result['num_prompts']:,} requests, {at_once}{by_clock}"
    for key, words in _COUNTS.items():
        if result.get(key) is not None and (key != "failed" or result[key]):
            yield f"{words:<{WIDTH}}{cell(result[key])}"
