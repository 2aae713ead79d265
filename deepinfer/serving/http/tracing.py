"""OpenTelemetry, an extra: one span for each request, under the names of the GenAI conventions, sent by OTLP over HTTP.

A span is made when its request is over, from the times that were kept anyway: a streamed token costs nothing here. Neither
prompts nor answers stand in it. This is the one file that imports opentelemetry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import deepinfer

if TYPE_CHECKING:
    from fastapi import FastAPI
    from opentelemetry.sdk.trace.export import SpanExporter
    from starlette.types import Scope

    from deepinfer.serving.answers import Answers
    from deepinfer.serving.http.service import Service

NEEDS = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
SEND_S = 5.0  # for a batch of spans to be taken; and for the last ones when the server ends
OPERATIONS = {"completions": "text_completion"}  # by dialect; the others chat


def has_extra() -> bool:
    """Whether the libraries of the extra `otel` are installed."""
    try:
        return all(find_spec(name) is not None for name in NEEDS)
    except ModuleNotFoundError:  # of a parent
        return False


def check_extra(endpoint: str | None) -> None:
    """Raises ValueError for what is no address of a collector, or where the extra is missing. None asks for no spans."""
    if endpoint is None:
        return
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise ValueError(f"{endpoint!r} is no http:// or https:// address, as http://127.0.0.1:4318")
    if not has_extra():
        raise ValueError("the libraries of the extra otel are not installed")


def traces_url(endpoint: str) -> str:
    """Where spans are posted: a bare address gets the path that collectors listen at."""
    bare = urlsplit(endpoint).path in ("", "/")
    return f"{endpoint.rstrip('/')}/v1/traces" if bare else endpoint


def otlp_exporter(endpoint: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=traces_url(endpoint), timeout=SEND_S)


class Tracing:
    """Makes spans of requests under /v1 that were posted. `exporter` gets them, in a thread of its own."""

    def __init__(self, service: Service, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        about = {"service.name": "deepinfer", "service.version": deepinfer.__version__}
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_ON), resource=Resource.create(about), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, export_timeout_millis=SEND_S * 1e3))
        self._tracer = self._provider.get_tracer("deepinfer", deepinfer.__version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._service = service

    def http(self, scope: Scope, status: int, seconds: float) -> None:
        """An HTTP request is over. Where its answers go on without it, so does its span."""
        route = getattr(scope.get("route"), "path", "")
        if scope["method"] != "POST" or not route.startswith("/v1/"):
            return
        began_s = time.time() - seconds
        answers: list[Answers] = list(scope["state"].get("answers", []))
        when_ended(answers, lambda: self._span(scope, route, status, began_s, answers))

    async def close(self) -> None:
        """Send what is left, for a while."""
        ended = asyncio.get_running_loop().run_in_executor(None, self._provider.shutdown)
        await asyncio.wait([ended], timeout=SEND_S)

    def _span(self, scope: Scope, route: str, status: int, began_s: float, answers: Sequence[Answers]) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        state, model = scope["state"], self._service.model_names[0]
        operation = OPERATIONS.get(state.get("dialect", ""), "chat")
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "deepinfer",
            "gen_ai.request.model": model,
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": status,
            "deepinfer.request_id": state["request_id"],
        }
        span = self._tracer.start_span(
            f"{operation} {model}" if answers else f"POST {route}",
            context=self._extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes | (answered(answers) | {"gen_ai.response.model": model} if answers else {}),
            start_time=round(began_s * 1e9),
        )
        failed = status >= 500 or any("error" in each.finish_reasons for each in answers)
        if failed:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", str(status) if status >= 500 else "request_failed")
        elif state.get("ended"):
            span.set_attribute("error.type", state["ended"])  # client_gone or slow_reader
        span.end()


def answered(answers: Sequence[Answers]) -> dict[str, Any]:
    """Attributes of what the engine did for a request. Latencies are seconds, and those of its first prompt."""
    first = answers[0].timings
    found = {
        "gen_ai.usage.input_tokens": sum(each.prompt_tokens for each in answers),
        "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in answers),
        "gen_ai.usage.output_tokens": sum(each.num_tokens for each in answers),
        "gen_ai.response.finish_reasons": [reason or "" for each in answers for reason in each.finish_reasons],
        "gen_ai.request.choice.count": sum(len(each.finish_reasons) for each in answers),
        "deepinfer.drafts.checked": sum(each.num_checked for each in answers),
        "deepinfer.drafts.accepted": sum(each.num_accepted for each in answers),
    }
    latencies = {
        "gen_ai.latency.time_in_queue": first.queue_ms,
        "gen_ai.latency.time_to_first_token": first.first_token_ms,
        "gen_ai.latency.e2e": max((each.timings.total_ms or 0.0 for each in answers), default=0.0),
    }
    return found | {name: value / 1e3 for name, value in latencies.items() if value is not None}


def when_ended(answers: Sequence[Answers], then: Callable[[], None]) -> None:
    """Call `then` once all answers have ended, at once where they have."""
    waited = next((each for each in answers if not each.ended), None)
    if waited is None:
        then()
        return
    before = waited.on_end

    def ended(each: Answers) -> None:
        before(each)
        when_ended(answers, then)

    waited.on_end = ended


def add_routes(app: FastAPI, service: Service) -> None:
    """No routes: spans of all requests, where `serving.otlp_endpoint` says they go. Raises ValueError as `check_extra`."""
    del app
    endpoint = service.settings.otlp_endpoint
    if endpoint is None:
        return
    check_extra(endpoint)
    tracing = Tracing(service, otlp_exporter(endpoint))
    service.on_http.append(tracing.http)
    service.on_close.append(tracing.close)
