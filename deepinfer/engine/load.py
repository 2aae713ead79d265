"""A load for measurements: requests that arrive by a clock or one after another, and when each of their tokens came."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.collector import EngineLike


_NO_IDS = np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class TimedRequest:
    """One request of a load. Times are seconds on one clock."""

    prompt_ids: np.ndarray  # int64 [prompt tokens]
    due_s: float | None = None  # when it arrives, from the start of the load; None: as soon as there is room for it
    started_s: float = 0.0  # from which its waiting counts
    token_s: list[float] = field(default_factory=list)  # when news of tokens came; a step may bring several tokens
    num_tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.token_s[0] - self.started_s

    @property
    def e2el_s(self) -> float:
        """End-to-end latency."""
        return self.token_s[-1] - self.started_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None where there is only one."""
        return (self.e2el_s - self.ttft_s) / (self.num_tokens - 1) if self.num_tokens > 1 else None

    @property
    def itl_s(self) -> list[float]:
        """Inter-token latencies: times between one news of tokens and the next, of however many tokens each tells."""
        return np.diff(self.token_s).tolist()


def random_requests(
    number: int,
    prompt_tokens: int,
    vocab_size: int,
    rng: np.random.Generator,
    request_rate: float | None = None,
    *,
    beginning: np.ndarray = _NO_IDS,
) -> list[TimedRequest]:
    """Prompts of uniformly drawn ids after the `beginning` [tokens] of all of them; with a rate (requests/s) they arrive as a
    Poisson process, the first at once."""
    gaps_s = rng.exponential(1 / request_rate, number) if request_rate else np.zeros(number)
    due_s = np.cumsum(gaps_s) - gaps_s[:1]
    return [
        TimedRequest(
            np.concatenate([beginning, rng.integers(0, vocab_size, prompt_tokens - len(beginning))]),
            due_s=float(due) if request_rate else None,
        )
        for due in due_s
    ]


def run_load(
    engine: EngineLike,
    requests: Iterable[TimedRequest],
    params: SamplingParams,
    *,
    concurrency: int | None,
    on_finish: Callable[[TimedRequest], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Send requests to an idle engine until all have ended, at most `concurrency` at once; returns the seconds it took.

    A request with a `due_s` waits from that moment on, also while the engine is in a step or all places are taken: a server
    that falls behind cannot hide it. One without waits from the moment it is sent.
    """
    begun_s = clock()
    waiting = deque(requests)
    running: dict[int, TimedRequest] = {}
    while waiting or running:
        while waiting and (concurrency is None or len(running) < concurrency):
            request, now_s = waiting[0], clock()
            if request.due_s is not None and begun_s + request.due_s > now_s:
                break
            waiting.popleft()
            request.started_s = now_s if request.due_s is None else begun_s + request.due_s
            try:
                running[engine.submit(request.prompt_ids, params)[0]] = request
            except ValueError as error:
                request.error = str(error)
                on_finish(request)
        if running:
            _step(engine, running, on_finish, clock)
        elif waiting and waiting[0].due_s is not None:
            sleep(max(0.0, begun_s + waiting[0].due_s - clock()))
    return clock() - begun_s


def _step(
    engine: EngineLike,
    running: dict[int, TimedRequest],
    on_finish: Callable[[TimedRequest], None],
    clock: Callable[[], float],
) -> None:
    events = engine.step()
    now_s = clock()
    for event in events:
        request = running[event.request_id]
        if event.token_ids:
            request.token_s.append(now_s)
            request.num_tokens += len(event.token_ids)
        if event.finish_reason is not None:
            request.error = event.error
            on_finish(running.pop(event.request_id))
