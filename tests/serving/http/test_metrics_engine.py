"""An engine's counters over restarts, and the seconds that the page draws."""

from types import SimpleNamespace

import msgspec
import pytest

from deepinfer.engine.stats import EngineStats, PrefixStats
from deepinfer.serving.http.metrics import ServerMetrics
from deepinfer.serving.http.metrics_engine import EngineTotals
from deepinfer.serving.http.metrics_history import MOST_SAMPLES, History


def stats(steps: int, **more: object) -> EngineStats:
    zeros = {name: 0 for name in EngineStats.__struct_fields__}
    zeros |= {"finished": {}, "checked_at": [], "accepted_at": [], "prefix": None, "steps": steps}
    return EngineStats(**zeros | more)


def prefix_stats(**more: int) -> PrefixStats:
    return PrefixStats(**{name: 0 for name in PrefixStats.__struct_fields__} | more)


def test_totals_never_fall_where_an_engine_starts_again() -> None:
    totals, seen = EngineTotals(), []
    for each in (
        stats(3, preemptions=2, checked_at=[2, 1], accepted_at=[2, 0], prefix=prefix_stats(saved_tokens=128)),
        stats(5, preemptions=2, checked_at=[4, 2], accepted_at=[3, 1], prefix=prefix_stats(saved_tokens=128)),
        stats(1, checked_at=[1, 1], accepted_at=[1, 1], prefix=prefix_stats()),
        stats(2, preemptions=1, checked_at=[1, 1], accepted_at=[1, 1], prefix=prefix_stats()),
        stats(0, checked_at=[0, 0], accepted_at=[0, 0], prefix=prefix_stats()),
    ):
        totals.take(each)
        totals.take(each)  # looking twice counts once
        names = ("engine_steps", "num_preemptions", "spec_decode_num_accepted_tokens", "prefix_cache_hits")
        seen.append(tuple(totals[name] for name in (*names, "accepted_at 1")))
    assert seen == [(3, 2, 2, 128, 0), (5, 2, 4, 128, 1), (6, 2, 6, 128, 2), (7, 3, 6, 128, 2), (7, 3, 6, 128, 2)]
    assert totals.num_restarts == 2


@pytest.fixture
def metrics() -> ServerMetrics:
    line = SimpleNamespace(stats=None, state="ready", phase="ready", num_open=0, num_running=0, num_waiting=0)
    admission = SimpleNamespace(num_open=0)
    return ServerMetrics(
        SimpleNamespace(line=line, admission=admission, model_names=("m",), plan_json=b"{}", started_s=0.0)
    )


def test_seconds_become_samples(metrics: ServerMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(
        "deepinfer.serving.http.metrics_history.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    )
    history = History(metrics, metrics._service)
    for steps, tokens in ((1, 10), (2, 30)):
        now[0] += 2.0
        metrics.step(tokens, [0.02] * tokens)
        found = stats(steps, prefill_rows=100 * steps, blocks_used=steps, blocks_total=4, verify_rounds=4 * steps)
        kept = prefix_stats(query_tokens=128 * steps, saved_tokens=64 * steps)
        metrics.counted(
            msgspec.structs.replace(found, accepted_at=[4 * steps, 2 * steps], checked_at=[4 * steps] * 2, prefix=kept)
        )
        history.sample()
        history.sample()  # too early for another
    first, second = history.told(0)["samples"]
    assert (first.answer_rate, second.answer_rate) == (5.0, 15.0)
    assert (first.prompt_rate, second.prompt_rate) == (50.0, 50.0)
    assert (second.cache_usage, second.hit_rate, second.accepted_length) == (0.5, 0.5, 2.5)
    assert second.between_tokens_ms is not None and 17.5 <= second.between_tokens_ms[0] <= 20.0
    assert second.first_token_ms is None
    told = history.told(1)
    assert told["samples"] == [second] and told["accepted_share_by_position"] == [1.0, 0.5]
    assert len(history.told(99)["samples"]) == 2, "a page of a server that was started again gets all"
    for _ in range(MOST_SAMPLES + 5):
        now[0] += 1.0
        history.sample()
    assert len(history.told(0)["samples"]) == MOST_SAMPLES
