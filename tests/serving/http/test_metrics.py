import asyncio
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from deepinfer.sampling.outputs import Timings
from deepinfer.serving.http.metrics import HISTOGRAMS, ServerMetrics


@pytest.fixture
def service() -> SimpleNamespace:
    line = SimpleNamespace(stats=None, state="ready", phase="ready", num_open=0, num_running=0, num_waiting=0)
    names, admission = ("v41_tiny", "other"), SimpleNamespace(num_open=0)
    return SimpleNamespace(line=line, admission=admission, model_names=names, plan_json=b"{}", started_s=0.0)


@pytest.fixture
def metrics(service: SimpleNamespace) -> ServerMetrics:
    return ServerMetrics(service)


def answers(*reasons: str, prompt: int = 7, tokens: int = 0, **timings: float) -> SimpleNamespace:
    return SimpleNamespace(
        prompt_tokens=prompt, num_tokens=tokens, finish_reasons=list(reasons), timings=Timings(**timings)
    )


def value(metrics: ServerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"deepinfer_{name}", {"model_name": "v41_tiny"} | labels)


def test_a_request_is_told_in_its_parts(metrics: ServerMetrics) -> None:
    ended = answers("stop", tokens=11, queue_ms=100.0, first_token_ms=400.0)
    metrics.request_started("chat", True)
    metrics.first_token("chat", ended)
    metrics.step(1, [])
    for _ in range(10):
        metrics.step(1, [0.06])
    metrics.finished("chat", ended, 1.0)
    assert value(metrics, "prompt_tokens_total") == 7 and value(metrics, "generation_tokens_total") == 11
    assert value(metrics, "requests_total", dialect="chat", stream="true") == 1
    sums = {name: value(metrics, f"{name}_sum") for name in HISTOGRAMS}
    assert sums == pytest.approx(
        {
            "time_to_first_token_seconds": 0.4,
            "inter_token_latency_seconds": 0.6,
            "request_time_per_output_token_seconds": 0.06,
            "e2e_request_latency_seconds": 1.0,
            "request_queue_time_seconds": 0.1,
            "request_prefill_time_seconds": 0.3,
            "request_decode_time_seconds": 0.6,
            "request_inference_time_seconds": 0.9,
            "request_prompt_tokens": 7,
            "request_generation_tokens": 11,
            "iteration_tokens_total": 11,
        }
    )


def test_what_did_not_end_by_itself_is_no_latency(metrics: ServerMetrics) -> None:
    metrics.finished("chat", answers("stop", "abort", tokens=9, queue_ms=1.0, first_token_ms=2.0), 5.0)
    metrics.finished("chat", answers("error"), 5.0)
    assert value(metrics, "e2e_request_latency_seconds_count") == 0
    found = {reason: value(metrics, "request_success_total", finished_reason=reason) for reason in ("stop", "abort")}
    assert found == {"stop": 1, "abort": 1}
    assert value(metrics, "request_success_total", finished_reason="error") == 1
    assert value(metrics, "request_success_total", finished_reason="length") == 0


def test_probes_are_nobodys_requests(metrics: ServerMetrics) -> None:
    probe = answers("length", tokens=1, queue_ms=1.0, first_token_ms=2.0)
    metrics.first_token("health", probe)
    metrics.finished("health", probe, 1.0)
    assert value(metrics, "time_to_first_token_seconds_count") == 0
    assert value(metrics, "request_success_total", finished_reason="length") == 0


def test_labels_come_from_a_closed_list(metrics: ServerMetrics) -> None:
    for method, path in (("GET", "/v1/models"), ("BREW", ""), ("M-SEARCH", "")):
        metrics.http(method, path, 404, 0.0)
    assert value(metrics, "http_requests_total", method="GET", path="/v1/models", status="404") == 1
    assert value(metrics, "http_requests_total", method="other", path="none", status="404") == 2


def test_both_formats_are_served_and_hold_what_a_request_did(fake_server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "ignore_eos": True}
    before = scraped(fake_server)
    reply = fake_server.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    assert fake_server.post("/v1/chat/completions", {}).status_code == 400
    after = scraped(fake_server)

    def grown(name: str, **labels: str) -> float:
        key = (f"deepinfer_{name}", frozenset((labels | {"model_name": fake_server.model}).items()))
        return after[key] - before.get(key, 0.0)

    assert grown("generation_tokens_total") == 6
    assert grown("prompt_tokens_total") == reply.json()["usage"]["prompt_tokens"]
    assert grown("request_success_total", finished_reason="length") == 1
    assert grown("time_to_first_token_seconds_count") == grown("e2e_request_latency_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 5
    assert grown("http_requests_total", method="POST", path="/v1/chat/completions", status="400") == 1
    asked = {"accept": "application/openmetrics-text; version=1.0.0"}
    families = list(openmetrics(httpx.get(f"{fake_server.url}/metrics", headers=asked).text))
    assert {"deepinfer_plan_info", "deepinfer_build_info"} <= {family.name for family in families}
    (info,) = next(family for family in families if family.name == "deepinfer_plan_info").samples
    chosen = {"hardware": "cpu", "parallel": "single", "speculation": "none", "executor": "simulated"}
    assert info.value == 1 and chosen.items() <= info.labels.items()


def scraped(server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    reply = httpx.get(f"{server.url}/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    families = text_format(reply.text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def test_gauges_follow_the_engine(make_server) -> None:
    server = make_server("executor.step_time_s=0.02", "scheduler.max_num_seqs=1")
    body = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}

    async def look() -> tuple[float, float, float]:
        async with httpx.AsyncClient(timeout=30) as client:

            async def ask() -> None:
                async with client.stream("POST", f"{server.url}/v1/completions", json=body) as reply:
                    async for _ in reply.aiter_bytes():
                        pass

            asked = [asyncio.ensure_future(ask()) for _ in range(3)]
            names = ("num_requests_running", "num_requests_waiting", "num_requests_open")
            for _ in range(200):
                found = scraped(server)
                told = tuple(found[f"deepinfer_{name}", frozenset({("model_name", server.model)})] for name in names)
                if told == (1, 2, 3):
                    break
                await asyncio.sleep(0.02)
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            return told

    assert asyncio.run(look()) == (1, 2, 3)


def test_samples_come_while_nobody_asks(fake_server) -> None:
    found: dict[str, object] = {}
    for _ in range(100):
        found = httpx.get(f"{fake_server.url}/v1/stats?since=0").json()
        if found["samples"]:
            break
        asyncio.run(asyncio.sleep(0.1))
    assert found["model"] == fake_server.model and found["state"] == "ready"
    newest = found["samples"][-1]["number"]
    assert all(
        each["number"] > newest for each in httpx.get(f"{fake_server.url}/v1/stats?since={newest}").json()["samples"]
    )
    assert httpx.get(f"{fake_server.url}/v1/stats?since=-1").status_code == 200
