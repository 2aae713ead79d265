"""From the times of single tokens to the figures that serving benchmarks agree on, under the names they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from deepinfer.engine.load import TimedRequest

LATENCIES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token (after the first)",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
STATISTICS = ("mean", "median", "std", "p90", "p99")


def figures(requests: Sequence[TimedRequest], duration_s: float) -> dict[str, float | int | None]:
    """Counts, throughputs per second, and latencies in milliseconds as `{statistic}_{latency}_ms`.

    Requests that failed count in `failed` alone. A statistic of nothing is None. Where speculation brings several tokens at
    once, an inter-token latency is the time between two such arrivals, as other benchmarks count it, and `tokens_per_itl`
    says how many tokens came at the end of one on average; the time per output token is spread over all tokens.
    """
    done = [request for request in requests if request.error is None and request.token_s]
    num_input = sum(len(request.prompt_ids) for request in done)
    num_output = sum(request.num_tokens for request in done)
    samples_s = {
        "ttft": [request.ttft_s for request in done],
        "tpot": [request.tpot_s for request in done if request.tpot_s is not None],
        "itl": [gap for request in done for gap in request.itl_s],
        "e2el": [request.e2el_s for request in done],
    }
    found: dict[str, float | int | None] = {
        "completed": len(done),
        "failed": len(requests) - len(done),
        "duration": duration_s,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) / duration_s,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
    }
    found["tokens_per_itl"] = (num_output - len(done)) / len(samples_s["itl"]) if samples_s["itl"] else None
    for name, values_s in samples_s.items():
        found |= {f"{statistic}_{name}_ms": value for statistic, value in _statistics_ms(values_s).items()}
    return found


def _statistics_ms(values_s: Sequence[float]) -> dict[str, float | None]:
    if not values_s:
        return dict.fromkeys(STATISTICS)
    values_ms = np.array(values_s) * 1e3
    p90, p99 = np.percentile(values_ms, [90, 99])
    numbers = (values_ms.mean(), np.median(values_ms), values_ms.std(), p90, p99)
    return {statistic: float(value) for statistic, value in zip(STATISTICS, numbers)}
