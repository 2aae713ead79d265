"""The load of a benchmark against an engine whose steps take a second of a clock that we turn."""

from collections.abc import Callable

import numpy as np
import pytest

from deepinfer.engine.events import TokenEvent
from deepinfer.engine.latencies import figures
from deepinfer.engine.load import TimedRequest, random_requests, run_load
from deepinfer.interfaces import SamplingParams

PARAMS = SamplingParams(max_tokens=3)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds


class OneTokenASecond:
    """Every request in it gets a token in each step of one second; ids from 1000 on are refused."""

    def __init__(self, clock: Clock, fails_at: Callable[[int, int], bool] = lambda request, token: False) -> None:
        self.clock, self.fails_at = clock, fails_at
        self.left: dict[int, int] = {}
        self.most = self.next_id = 0

    def submit(self, prompt_ids: np.ndarray, params: SamplingParams) -> list[int]:
        if prompt_ids.max() >= 1000:
            raise ValueError("an id beyond the vocabulary")
        self.next_id += 1
        self.left[self.next_id] = params.max_tokens
        self.most = max(self.most, len(self.left))
        return [self.next_id]

    def step(self) -> list[TokenEvent]:
        assert self.left, "a step with nothing to do"
        self.clock.now_s += 1
        events = []
        for request_id in list(self.left):
            self.left[request_id] -= 1
            failed = self.fails_at(request_id, self.left[request_id])
            ends = failed or not self.left[request_id]
            reason = "error" if failed else "length" if ends else None
            tokens = [] if failed else [7]
            events.append(TokenEvent(request_id, tokens, finish_reason=reason, error="NaN" if failed else None))
            if ends:
                del self.left[request_id]
        return events


def load(
    requests: list[TimedRequest], *, concurrency: int | None = None, **engine: object
) -> tuple[float, OneTokenASecond]:
    clock = Clock()
    fake = OneTokenASecond(clock, **engine)  # type: ignore[arg-type]
    took_s = run_load(fake, requests, PARAMS, concurrency=concurrency, clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]
    return took_s, fake


def prompts(*due_s: float | None) -> list[TimedRequest]:
    return [TimedRequest(np.array([1, 2]), due_s=due) for due in due_s]


def test_as_many_at_once_as_asked() -> None:
    requests = prompts(*[None] * 5)
    took_s, engine = load(requests, concurrency=2)
    assert (took_s, engine.most) == (9.0, 2)  # 2 + 2 + 1 requests of three steps each
    assert [request.ttft_s for request in requests] == [1.0] * 5  # the wait for a place is not theirs
    assert load(prompts(*[None] * 5))[0] == 3.0


def test_arrivals_wait_from_the_moment_they_are_due() -> None:
    requests = prompts(0.0, 0.5, 20.0)
    took_s, _ = load(requests, concurrency=1)
    assert [request.ttft_s for request in requests] == [1.0, 3.5, 1.0]  # the second finds the place taken until 3 s
    assert took_s == 23.0
    requests = prompts(0.0, 0.5)
    load(requests)
    assert requests[1].ttft_s == 1.5  # and in a step until 1 s


def test_latencies_by_hand() -> None:
    request = TimedRequest(np.arange(4), started_s=10.0, token_s=[11.0, 11.5, 13.0], num_tokens=5)
    assert (request.ttft_s, request.e2el_s, request.tpot_s) == (1.0, 3.0, 0.5)  # 2 s for the 4 tokens after the first
    assert request.itl_s == [0.5, 1.5]
    other = TimedRequest(np.arange(6), started_s=10.0, token_s=[13.0], num_tokens=1)
    found = figures([request, other, TimedRequest(np.arange(3), error="NaN")], duration_s=4.0)
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (10, 6)
    assert (found["request_throughput"], found["output_throughput"], found["total_token_throughput"]) == (0.5, 1.5, 4.0)
    assert (found["mean_ttft_ms"], found["median_ttft_ms"], found["std_ttft_ms"]) == (2000.0, 2000.0, 1000.0)
    assert found["p90_ttft_ms"] == pytest.approx(2800.0) and found["p99_ttft_ms"] == pytest.approx(2980.0)
    assert found["tokens_per_itl"] == 2.0  # the first token, then four in two arrivals
    assert found["mean_tpot_ms"] == 500.0 and found["mean_itl_ms"] == 1000.0 and found["mean_e2el_ms"] == 3000.0


def test_nothing_has_no_latency() -> None:
    found = figures([TimedRequest(np.arange(3), error="NaN")], duration_s=1.0)
    assert (found["failed"], found["mean_ttft_ms"], found["p99_itl_ms"]) == (1, None, None)
    assert found["tokens_per_itl"] is None


def test_refused_and_failed_requests_end_alone() -> None:
    requests = prompts(None, None, None)
    requests[1].prompt_ids = np.array([1000])
    ended: list[TimedRequest] = []
    clock = Clock()
    engine = OneTokenASecond(clock, lambda request, left: request == 1 and left == 1)
    run_load(engine, requests, PARAMS, concurrency=1, on_finish=ended.append, clock=clock)  # type: ignore[arg-type]
    assert [request.error for request in requests] == ["NaN", "an id beyond the vocabulary", None]
    assert ended == requests and requests[2].num_tokens == 3


def test_arrivals_are_poisson_and_repeat_with_the_seed() -> None:
    first, again = (random_requests(2000, 3, 50, np.random.default_rng(1), request_rate=4.0) for _ in range(2))
    due_s = np.array([request.due_s for request in first])
    assert due_s[0] == 0 and (np.diff(due_s) > 0).all()
    assert abs(np.diff(due_s).mean() - 0.25) < 0.02 and abs(np.diff(due_s).std() - 0.25) < 0.03
    assert all((a.prompt_ids == b.prompt_ids).all() and a.due_s == b.due_s for a, b in zip(first, again))
    ids = np.concatenate([request.prompt_ids for request in first])
    assert (ids.min(), ids.max()) == (0, 49)


def test_prompts_may_begin_alike() -> None:
    requests = random_requests(3, 6, 50, np.random.default_rng(1), beginning=np.arange(4))
    assert [request.prompt_ids[:4].tolist() for request in requests] == [[0, 1, 2, 3]] * 3
    assert len({tuple(request.prompt_ids) for request in requests}) == 3 and len(requests[0].prompt_ids) == 6
