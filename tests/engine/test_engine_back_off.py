"""A whole engine turns drafting off while it does not pay and on again when it does, says so once, and no answer changes."""

import msgspec
import numpy as np
import pytest
from toy_executor import ToyExecutor, expected_answer, toy_limits

from deepinfer.engine.engine import Engine
from deepinfer.interfaces import SampleInput, SamplingParams, StepPlan, VerifyLengths
from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.budget import ConfidenceBudget
from deepinfer.speculation.fixed import FixedLengths

DEPTH, WINDOW, PAUSE = 3, 32, 60


class Costly(ToyExecutor):
    """Steps take 1 s by the device's own clock, and half as much again where drafts are made."""

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.newest = plan

    def sample(self, sample: SampleInput) -> None:
        super().sample(sample)
        self._outputs[-1].device_s = 1.5 if self.newest.draft else 1.0

    newest: StepPlan


def lengths_of(kind: str) -> VerifyLengths:
    back_off = BackOff(window=WINDOW, first_pause=PAUSE)
    return FixedLengths(DEPTH, back_off) if kind == "fixed" else ConfidenceBudget(DEPTH, None, back_off)


@pytest.mark.parametrize("async_depth", [0, 1])
@pytest.mark.parametrize("kind", ["fixed", "confidence"])
def test_a_useless_drafter_rests_and_a_good_one_is_taken_back(kind: str, async_depth: int) -> None:
    limits = toy_limits(
        max_model_len=1_500, num_blocks=2_000, max_num_batched_tokens=64, draft_depth=DEPTH, async_depth=async_depth
    )
    executor = Costly(limits, acceptance=0.0)
    engine = Engine(executor, limits, lengths=lengths_of(kind), seed_entropy=5)
    params = SamplingParams(max_tokens=600, ignore_eos=True)
    ids = [engine.submit(np.arange(1, 6), msgspec.structs.replace(params, seed=seed))[0] for seed in (3, 4)]
    tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
    notices: list[tuple[int, str]] = []
    while engine.has_work:
        for event in engine.step():
            tokens[event.request_id] += event.token_ids
        notices += [(len(executor.plans), notice) for notice in engine.take_notices()]
        if notices and len(executor.plans) > notices[0][0] + PAUSE // 2:
            executor.acceptance = 1.0
    ((said_at, notice),) = notices
    assert "speculation does not pay here: acceptance 0%" in notice and "drafting is off" in notice
    drafted = [plan.draft for plan in executor.plans]
    assert any(drafted[:said_at]), "it was tried"
    resting = executor.plans[said_at + 2 : said_at + PAUSE - 2]
    assert not any(plan.draft or plan.num_drafts for plan in resting), "nothing is drafted or checked while it rests"
    assert all(drafted[said_at + PAUSE + 8 :]) and len(drafted) > said_at + PAUSE + WINDOW, "it pays now"
    assert engine.stats().accepted_at[0] > 0
    for seed, request_id in zip((3, 4), ids):
        assert tokens[request_id] == expected_answer([1, 2, 3, 4, 5], seed, params, limits)
