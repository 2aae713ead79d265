"""/metrics for Prometheus, under `deepinfer_` with the usual stems, and /v1/stats for the page.

Everything is counted in this process on the event loop, so that no number needs a lock; a step of the engine costs one call
whatever its answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from deepinfer.serving.http.metrics_engine import EngineTotals
from deepinfer.serving.http.metrics_history import History
from deepinfer.serving.http.metrics_plan import infos
from deepinfer.serving.http.metrics_refused import reason_of, refusal
from deepinfer.serving.http.metrics_tally import (
    BETWEEN_TOKENS_S,
    FIRST_TOKEN_S,
    REQUEST_S,
    STEP_TOKENS,
    TOKENS,
    Tally,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Scope

    from deepinfer.engine.stats import EngineStats
    from deepinfer.serving.answers import Answers
    from deepinfer.serving.http.service import Service

PREFIX = "deepinfer_"
PROBE = "health"  # the dialect of /health_generate, whose requests are nobody's
REASONS = ("stop", "length", "abort", "error")
STATES = ("starting", "ready", "restarting", "draining", "failed", "closed")
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"})
HISTOGRAMS = {
    "time_to_first_token_seconds": (FIRST_TOKEN_S, "From a request's arrival to its first token."),
    "inter_token_latency_seconds": (BETWEEN_TOKENS_S, "Between two steps that brought an answer tokens."),
    "request_time_per_output_token_seconds": (
        BETWEEN_TOKENS_S,
        "Of a whole answer: decoding by its tokens but the first.",
    ),
    "e2e_request_latency_seconds": (REQUEST_S, "From a request's arrival to its last token."),
    "request_queue_time_seconds": (REQUEST_S, "From a request's arrival until it was begun."),
    "request_prefill_time_seconds": (REQUEST_S, "From then to its first token."),
    "request_decode_time_seconds": (REQUEST_S, "From its first token to its last."),
    "request_inference_time_seconds": (REQUEST_S, "From when it was begun to its last token."),
    "request_prompt_tokens": (TOKENS, "Tokens of a request's prompt."),
    "request_generation_tokens": (TOKENS, "Tokens of a request's answers."),
    "iteration_tokens_total": (STEP_TOKENS, "Tokens of answers that a step brought."),
}


class ServerMetrics:
    """The hooks of `hooks.Metrics`, and what Prometheus collects. Latencies are of requests whose answers all ended by
    themselves (stop, length); a first token counts when it comes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.labels = {"model_name": service.model_names[0]}
        self.engine = EngineTotals()
        self.tallies = {name: Tally(bounds) for name, (bounds, _) in HISTOGRAMS.items()}
        self.prompt_tokens = self.generation_tokens = 0
        self.started: Counter[tuple[str, ...]] = Counter()  # by dialect and whether streamed
        self.refused: Counter[tuple[str, ...]] = Counter()  # by dialect, status and code
        self.ended: Counter[str] = Counter()  # answers by reason
        self.answered: Counter[tuple[str, ...]] = Counter()  # HTTP requests by method, path and status
        self._between, self._step = self.tallies["inter_token_latency_seconds"], self.tallies["iteration_tokens_total"]
        self._infos = list(infos(service.plan_json, PREFIX, self.labels))
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    # --- hooks -----------------------------------------------------------------------------------------------------

    def request_started(self, dialect: str, stream: bool) -> None:
        self.started[dialect, str(stream).lower()] += 1

    def request_refused(self, dialect: str, status: int, code: str) -> None:
        self.refused[dialect, str(status), reason_of(status, code)] += 1

    def answered_http(self, scope: Scope, status: int, seconds: float) -> None:
        """What was refused before its limits were asked."""
        if (found := refusal(scope, status)) is not None:
            self.refused[found] += 1

    def step(self, num_tokens: int, intervals_s: list[float]) -> None:
        self.generation_tokens += num_tokens
        self._step.add(num_tokens)
        self._between.add_all(intervals_s)

    def first_token(self, dialect: str, answers: Answers) -> None:
        self.prompt_tokens += answers.prompt_tokens
        if dialect != PROBE and answers.timings.first_token_ms is not None:
            self.tallies["time_to_first_token_seconds"].add(answers.timings.first_token_ms / 1e3)

    def finished(self, dialect: str, answers: Answers, seconds: float) -> None:
        if dialect == PROBE:
            return
        self.ended.update(reason for reason in answers.finish_reasons if reason is not None)
        self._add("request_prompt_tokens", answers.prompt_tokens)
        self._add("request_generation_tokens", answers.num_tokens)
        queue_ms, first_ms = answers.timings.queue_ms, answers.timings.first_token_ms
        if queue_ms is None or first_ms is None or not {"stop", "length"}.issuperset(answers.finish_reasons):
            return
        queue_s, first_s = queue_ms / 1e3, first_ms / 1e3
        self._add("e2e_request_latency_seconds", seconds)
        self._add("request_queue_time_seconds", queue_s)
        self._add("request_prefill_time_seconds", first_s - queue_s)
        self._add("request_decode_time_seconds", seconds - first_s)
        self._add("request_inference_time_seconds", seconds - queue_s)
        later = answers.num_tokens / len(answers.finish_reasons) - 1
        if later > 0:
            self._add("request_time_per_output_token_seconds", (seconds - first_s) / later)

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        self.answered[method if method in METHODS else "other", path or "none", str(status)] += 1

    def counted(self, stats: EngineStats) -> None:
        """The engine's newest counters."""
        self.engine.take(stats)

    # --- Prometheus ------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        if self._service.line.stats is not None:
            self.counted(self._service.line.stats)
        yield from self._infos
        yield from self._now()
        yield self._counter("prompt_tokens", "Tokens of prompts whose answers have begun.", self.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens of answers.", self.generation_tokens)
        reasons: dict[tuple[str, ...], float] = {(reason,): self.ended[reason] for reason in REASONS}
        yield self._counters("request_success", "Answers that ended, by how.", ("finished_reason",), reasons)
        yield self._counters("requests", "Requests that reached the engine.", ("dialect", "stream"), self.started)
        about = "Requests that got an error in place of an answer, by reason."
        yield self._counters("requests_refused", about, ("dialect", "status", "code"), self.refused)
        about = "HTTP requests by route and status; path none: there is no such route."
        yield self._counters("http_requests", about, ("method", "path", "status"), self.answered)
        for name, (_, about) in HISTOGRAMS.items():
            yield self.tallies[name].family(PREFIX + name, about, self.labels)
        yield from self.engine.families(PREFIX, self.labels)

    def _now(self) -> Iterator[Metric]:
        line, admission = self._service.line, self._service.admission
        yield self._gauge("num_requests_running", "Answers that the engine computes.", line.num_running)
        yield self._gauge("num_requests_waiting", "Answers that wait to be begun.", line.num_waiting)
        yield self._gauge("num_requests_open", "Requests in flight, streamed or not.", admission.num_open)
        family = GaugeMetricFamily(
            f"{PREFIX}engine_state", "1 for the state that the engine is in.", labels=[*self.labels, "state"]
        )
        for state in STATES:
            family.add_metric([*self.labels.values(), state], float(state == line.state))
        yield family

    def _add(self, name: str, value: float) -> None:
        self.tallies[name].add(value)

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, about, labels=list(self.labels))
        family.add_metric(list(self.labels.values()), value)
        return family

    def _counter(self, name: str, about: str, value: float) -> Metric:
        return self._counters(name, about, (), {(): value})

    def _counters(
        self, name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
    ) -> Metric:
        family = CounterMetricFamily(PREFIX + name, about, labels=[*self.labels, *labels])
        for each, value in values.items():
            family.add_metric([*self.labels.values(), *each], value)
        return family


def add_routes(app: FastAPI, service: Service) -> None:
    metrics = ServerMetrics(service)
    history = History(metrics, service)
    service.metrics = metrics

    def counted(stats: EngineStats) -> None:
        metrics.counted(stats)
        history.sample()

    service.line.on_stats = counted
    service.on_http.append(metrics.answered_http)

    async def prometheus(request: Request) -> Response:
        """In Prometheus' text format, or OpenMetrics where `Accept` asks for it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"content-type": content_type, "cache-control": "no-store"})

    async def stats(request: Request) -> Response:
        """Samples of a second each, those after `since`, and what is so now."""
        since = request.query_params.get("since", "0")
        return service.json(history.told(int(since) if since.isdigit() and len(since) < 16 else 0))

    app.add_api_route("/metrics", prometheus, methods=["GET"], response_class=Response)
    app.add_api_route("/v1/stats", stats, methods=["GET"], response_class=Response)
