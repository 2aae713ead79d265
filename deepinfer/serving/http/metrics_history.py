"""The last minutes, a sample a second, for the page: what happened within each second."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from deepinfer.serving.http.metrics_engine import usage
from deepinfer.serving.http.metrics_tally import Tally, quantile

if TYPE_CHECKING:
    from deepinfer.serving.http.metrics import ServerMetrics
    from deepinfer.serving.http.service import Service

MOST_SAMPLES = 600
LEAST_S = 0.5  # between two samples
_FIRST, _BETWEEN = "time_to_first_token_seconds", "inter_token_latency_seconds"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A second, or so. Rates are tokens a second, times milliseconds; None where nothing happened that could be measured."""

    number: int  # from 1
    time: float  # when it ended, seconds since 1970
    answer_rate: float
    prompt_rate: float  # computed ones, as rows; those found in a cache not
    running: int
    waiting: int
    cache_usage: float  # 0 to 1
    hit_rate: float | None  # of the prompts' tokens that were looked up
    accepted_length: float | None  # mean tokens of a round with drafts
    first_token_ms: tuple[float, float] | None  # p50, p95
    between_tokens_ms: tuple[float, float] | None


class History:
    """Takes a sample whenever `sample` is called, a second or so apart."""

    def __init__(self, metrics: ServerMetrics, service: Service) -> None:
        self._metrics, self._service = metrics, service
        self._samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._number = 0
        self._at_s = time.monotonic()
        self._before = self._totals()
        self._counts = {name: list(metrics.tallies[name].counts) for name in (_FIRST, _BETWEEN)}

    def sample(self) -> None:
        """What happened since the last one."""
        now_s = time.monotonic()
        past_s = now_s - self._at_s
        if past_s < LEAST_S:
            return
        totals = self._totals()
        did = {name: value - self._before[name] for name, value in totals.items()}
        self._at_s, self._before = now_s, totals
        self._number += 1
        stats, line = self._metrics.engine.stats, self._service.line
        sample = Sample(
            number=self._number,
            time=round(time.time(), 2),
            answer_rate=round(did["answers"] / past_s, 2),
            prompt_rate=round(did["engine_prefill_rows"] / past_s, 2),
            running=line.num_running,
            waiting=line.num_waiting,
            cache_usage=usage(stats) if stats is not None else 0.0,
            hit_rate=_share(did["prefix_cache_hits"], did["prefix_cache_queries"]),
            accepted_length=_length(did["spec_decode_num_accepted_tokens"], did["spec_decode_num_drafts"]),
            first_token_ms=self._percentiles(_FIRST),
            between_tokens_ms=self._percentiles(_BETWEEN),
        )
        self._samples.append(sample)

    def told(self, since: int) -> dict[str, Any]:
        """What /v1/stats says: samples later than number `since`; all that there are where it lies ahead of them."""
        line, metrics = self._service.line, self._metrics
        samples = [each for each in self._samples if each.number > since or since > self._number]
        return {
            "model": self._service.model_names[0],
            "state": line.state,
            "phase": line.phase,
            "uptime_s": round(time.time() - self._service.started_s, 1),
            "answers_open": line.num_open,
            "prefix_cache": metrics.engine.stats is not None and metrics.engine.stats.prefix is not None,
            "speculation": metrics.engine.depth() > 0,
            "generation_tokens": metrics.generation_tokens,
            "prompt_tokens": metrics.prompt_tokens,
            "accepted_share_by_position": self._accepted(),
            "samples": samples,
        }

    def _totals(self) -> dict[str, float]:
        engine = self._metrics.engine
        names = ("engine_prefill_rows", "prefix_cache_hits", "prefix_cache_queries")
        drafts = ("spec_decode_num_accepted_tokens", "spec_decode_num_drafts")
        return {name: engine[name] for name in (*names, *drafts)} | {"answers": self._metrics.generation_tokens}

    def _percentiles(self, name: str) -> tuple[float, float] | None:
        tally: Tally = self._metrics.tallies[name]
        before, self._counts[name] = self._counts[name], list(tally.counts)
        counts = [count - old for count, old in zip(tally.counts, before, strict=True)]
        half, most = (quantile(tally.bounds, counts, share) for share in (0.5, 0.95))
        return None if half is None or most is None else (round(half * 1e3, 2), round(most * 1e3, 2))

    def _accepted(self) -> list[float | None]:
        """Of the drafts checked at each position so far, the share that was accepted with all before them."""
        stats = self._metrics.engine.stats
        if stats is None:
            return []
        return [_share(got, asked) for got, asked in zip(stats.accepted_at, stats.checked_at, strict=True)]


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _length(accepted: float, rounds: float) -> float | None:
    return round(1 + accepted / rounds, 3) if rounds > 0 else None
