import asyncio
import gzip
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from running_server import FAKE, Running

from deepinfer.serving.answers import Answers, Piece
from deepinfer.serving.http import tracing
from deepinfer.serving.http.tracing import Tracing, answered, check_extra, traces_url, when_ended

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CHAT = {"messages": [{"role": "user", "content": "my secret"}], "max_tokens": 5, "ignore_eos": True}
sdk = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture(scope="module")
def traced_server() -> Iterator[tuple[Running, Tracing, Any]]:
    exporter, made = sdk.InMemorySpanExporter(), []

    def change(service: Any) -> None:
        made.append(Tracing(service, exporter))
        service.on_http.append(made[0].http)
        service.on_close.append(made[0].close)

    server = Running(*FAKE, change=change).wait_ready()
    yield server, made[0], exporter
    server.stop()


@pytest.fixture
def spans(traced_server: tuple[Running, Tracing, Any]) -> tuple[Running, Any]:
    """(a server, a function that waits for so many spans and gives them)"""
    server, made, exporter = traced_server
    exporter.clear()

    def finished(num: int) -> list[Any]:
        for _ in range(200):
            made._provider.force_flush()
            if len(exporter.get_finished_spans()) >= num:
                break
            time.sleep(0.02)
        return list(exporter.get_finished_spans())

    return server, finished


def test_a_request_is_one_span_under_the_names_of_the_conventions(spans) -> None:
    server, finished = spans
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    reply = server.post("/v1/chat/completions", CHAT | {"n": 2}, headers=traced)
    httpx.get(f"{server.url}/v1/models")
    (span,) = finished(1)
    assert span.name == f"chat {server.model}" and span.kind.name == "SERVER"
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    usage, found = reply.json()["usage"], dict(span.attributes)
    assert found["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 10
    assert found["gen_ai.response.finish_reasons"] == ("length", "length")
    assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == server.model
    assert (found["http.route"], found["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert found["deepinfer.request_id"] == "mine"
    assert 0 <= found["gen_ai.latency.time_to_first_token"] <= found["gen_ai.latency.e2e"]
    assert (span.end_time - span.start_time) / 1e9 >= found["gen_ai.latency.e2e"]
    assert "secret" not in span.to_json() and reply.json()["choices"][0]["message"]["content"] not in span.to_json()


def test_a_stream_a_refusal_and_a_trace_that_nobody_records(spans) -> None:
    server, finished = spans
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 3}, headers=unsampled).status_code == 200
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True}).status_code == 200
    assert server.post("/v1/chat/completions", {"messages": 3}, headers={"traceparent": "nonsense"}).status_code == 400
    streamed, refused = sorted(finished(2), key=lambda span: span.start_time)
    assert streamed.name == f"text_completion {server.model}" and streamed.parent is None
    assert streamed.attributes["gen_ai.usage.output_tokens"] == 3
    assert refused.name == "POST /v1/chat/completions" and refused.attributes["http.response.status_code"] == 400
    assert refused.status.is_unset, "what a client did wrong is no error of this server"
    assert "gen_ai.usage.input_tokens" not in refused.attributes


def test_a_client_that_goes_is_told(spans) -> None:
    server, finished = spans
    body = {"prompt": "x", "max_tokens": 450, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as reply:
        next(reply.iter_bytes())
    (span,) = finished(1)
    assert span.attributes["error.type"] == "client_gone"
    assert span.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert span.attributes["gen_ai.usage.output_tokens"] < 450


def test_a_response_in_the_background_is_told_when_it_has_ended(spans) -> None:
    server, finished = spans
    body = {
        "model": server.model,
        "input": "x",
        "max_output_tokens": 40,
        "background": True,
        "stream": False,
        "store": True,
    }
    reply = server.post("/v1/responses", body)
    assert reply.status_code == 200 and reply.json()["status"] in ("queued", "in_progress"), reply.text
    (span,) = finished(1)
    assert span.attributes["http.route"] == "/v1/responses"
    assert span.attributes["gen_ai.usage.output_tokens"] > 0
    assert span.attributes["gen_ai.response.finish_reasons"] in (("length",), ("stop",))


def test_spans_of_answers_that_outlive_their_request_wait_for_them() -> None:
    async def go() -> list[str]:
        told: list[str] = []
        two = [Answers(3, 1, 0.0, lambda answers, index, reason: None) for _ in range(2)]
        two[0].on_end = lambda answers: told.append("first")
        when_ended(two, lambda: told.append("span"))
        two[0].push(0, Piece(index=0, token_ids=[5], finish_reason="stop"))
        assert told == ["first"]
        two[1].push(0, Piece(index=0, token_ids=[6, 7], finish_reason="length"))
        found = answered(two)
        assert found["gen_ai.usage.input_tokens"] == 6 and found["gen_ai.usage.output_tokens"] == 3
        assert found["gen_ai.response.finish_reasons"] == ["stop", "length"]
        return told

    assert asyncio.run(go()) == ["first", "span"]


class Collector(BaseHTTPRequestHandler):
    """Takes spans as a collector does, and keeps what came."""

    got: list[tuple[str, str, bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, self.headers["content-type"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *told: object) -> None:
        pass


def test_spans_arrive_at_a_collector_by_the_time_the_server_has_ended(make_server) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    Collector.got = []
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    server = make_server(f"serving.otlp_endpoint=http://127.0.0.1:{listening.server_port}")
    assert server.post("/v1/chat/completions", CHAT).status_code == 200
    server.stop()
    listening.shutdown()
    listening.server_close()
    ((path, kind, body),) = Collector.got
    assert (path, kind) == ("/v1/traces", "application/x-protobuf")
    request = proto.ExportTraceServiceRequest()
    request.ParseFromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    (resource,) = request.resource_spans
    about = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert about["service.name"] == "deepinfer"
    (span,) = resource.scope_spans[0].spans
    found = {each.key: each.value for each in span.attributes}
    assert span.name == f"chat {server.model}" and found["gen_ai.usage.output_tokens"].int_value == 5


def test_a_collector_that_is_not_there_harms_nobody(make_server, free_port: int) -> None:
    server = make_server(f"serving.otlp_endpoint=http://127.0.0.1:{free_port}")
    assert server.post("/v1/chat/completions", CHAT).status_code == 200
    server.stop()
    assert server.code == 0


@pytest.fixture
def free_port() -> int:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        return int(server.server_port)


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces_url("http://a:4318") == traces_url("http://a:4318/") == "http://a:4318/v1/traces"
    assert traces_url("https://a/otel/v1/traces") == "https://a/otel/v1/traces"
    check_extra(None)
    check_extra("http://a:4318")
    for wrong in ("a:4318", "grpc://a:4317", "http://"):
        with pytest.raises(ValueError, match="is no http"):
            check_extra(wrong)
    monkeypatch.setattr(tracing, "NEEDS", ("not_there.at_all",))
    with pytest.raises(ValueError, match="extra otel"):
        check_extra("http://a:4318")


def test_nothing_of_opentelemetry_is_loaded_where_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    service = SimpleNamespace(settings=SimpleNamespace(otlp_endpoint=None), on_http=[], on_close=[])
    tracing.add_routes(SimpleNamespace(), service)
    assert not service.on_http and not any(name.startswith("opentelemetry") for name in sys.modules)
