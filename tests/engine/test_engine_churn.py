"""Thousands of random submissions, aborts, finishes and preemptions leave the engine as it was."""

import numpy as np
import pytest
from toy_executor import assert_empty, expected_answer, toy_engine, toy_limits

from deepinfer.engine.engine import Engine
from deepinfer.engine.seeds import sequence_key
from deepinfer.interfaces import SamplingParams


class Driver:
    """Does random things to an engine and checks every token against the plain model."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.rng = np.random.default_rng(seed)
        self.wanted: dict[int, list[int]] = {}  # what each running sequence still has to say
        self.errors_due: set[int] = set()
        self.aborted: set[int] = set()  # the event has yet to come
        self.done = {"stop": 0, "length": 0, "abort": 0, "error": 0, "stop string": 0}

    def submit(self) -> None:
        rng, limits = self.rng, self.engine.limits
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 40)),
            seed=int(rng.integers(2**62)),
            ignore_eos=bool(rng.integers(2)),
            n=int(rng.choice([1, 1, 1, 3])),
            prompt_logprobs=0 if rng.integers(4) == 0 else None,
        )
        prompt = rng.integers(0, limits.vocab_size, rng.integers(1, 50))
        ids = self.engine.submit(prompt, params, priority=int(rng.integers(0, 3)))
        for n_index, request_id in enumerate(ids):
            key = sequence_key(params.seed, n_index)
            self.wanted[request_id] = expected_answer(prompt.tolist(), key, params, limits)
            if rng.integers(12) == 0:
                at = int(rng.integers(len(self.wanted[request_id])))
                self.engine.executor.fail_at[key] = len(prompt) + at
                self.wanted[request_id] = self.wanted[request_id][:at]
                self.errors_due.add(request_id)

    def end_one(self) -> None:
        if not self.wanted:
            return
        request_id = int(self.rng.choice(list(self.wanted)))
        if request_id in self.aborted:
            assert not self.engine.abort(request_id) and not self.engine.finish(request_id)
            return
        if self.rng.integers(2):
            assert self.engine.abort(request_id)
            self.aborted.add(request_id)
            return
        assert self.engine.finish(request_id)
        del self.wanted[request_id]
        self.done["stop string"] += 1

    def step(self) -> None:
        for event in self.engine.step():
            wanted = self.wanted[event.request_id]
            assert wanted[: len(event.token_ids)] == event.token_ids
            del wanted[: len(event.token_ids)]
            if event.finish_reason is None:
                continue
            assert event.finish_reason == "abort" or not wanted
            assert (event.finish_reason == "error") <= (event.request_id in self.errors_due)
            del self.wanted[event.request_id]
            self.aborted.discard(event.request_id)
            self.done[event.finish_reason] += 1


@pytest.mark.parametrize(("seed", "num_blocks"), [(1, 16), (2, 24), (3, 60)])
@pytest.mark.parametrize(("draft_depth", "async_depth"), [(0, 0), (0, 1), (3, 0), (3, 1)])
def test_nothing_leaks(
    seed: int, num_blocks: int, draft_depth: int, async_depth: int, full: bool, sample_seed: int
) -> None:
    """Aborts, preemptions, ends and NaN at every point of steps in flight: late results never reach anybody."""
    sizes = {"num_blocks": num_blocks, "max_num_seqs": 7, "max_num_batched_tokens": 20}
    limits = toy_limits(**sizes, draft_depth=draft_depth, async_depth=async_depth)
    driver = Driver(toy_engine(limits), seed if full else seed + sample_seed)
    for _ in range(10_000 if full else 800):
        crowded = driver.engine.unfinished > 25
        action = driver.rng.choice(["submit", "end", "step"], p=[0.0, 0.2, 0.8] if crowded else [0.25, 0.07, 0.68])
        {"submit": driver.submit, "end": driver.end_one, "step": driver.step}[action]()
    while driver.engine.has_work:
        driver.step()
    assert not driver.wanted
    assert_empty(driver.engine)
    stats = driver.engine.stats()
    assert all(driver.done.values()), f"some kind of end never happened: {driver.done}"
    assert stats.preemptions > 0 or num_blocks == 60
    assert stats.dropped_results > 0 or not async_depth
    if draft_depth:
        assert 0 < sum(stats.accepted_at) < sum(stats.checked_at)
    ended = driver.done
    assert stats.finished == {
        **{r: ended[r] for r in ("length", "abort", "error")},
        "stop": ended["stop"] + ended["stop string"],
    }
    assert sum(stats.finished.values()) == stats.submitted
    driver.engine.close()
