"""The law of a whole engine with speculation.verify=rejection: drafts, changing budgets and steps ahead move no probability.

Answers of four tokens to one prompt, one for each seed: their first three tokens against the table's law, written without the
sampler. Plain sampling runs as the control, and verifiers that judge by a wrong law are caught.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from chi_square import p_value
from table_model import SIZE, TARGET_UVV, softmax, table_engine
from toy_executor import SomeDrafts

from deepinfer.engine.stats import EngineStats
from deepinfer.interfaces import SamplingParams, VerifyLengths
from deepinfer.speculation import rejection
from deepinfer.speculation.budget import ConfidenceBudget
from deepinfer.speculation.cost_curve import CostCurve

PROMPT = np.array([6, 2])
FEW, MANY = 1000, 20_000  # answers; with --full the second
IMPOSSIBLE = 1e-6  # p of a sound engine falls below it once in a million runs
SETTINGS = {
    "temperature 1": {},
    "top-p": {"top_p": 0.8},
    "filters and penalties": {"temperature": 0.8, "top_k": 6, "presence_penalty": 0.9, "frequency_penalty": 0.4},
}


def staircase() -> ConfidenceBudget:
    """A budget that follows confidences over a cost with steps."""
    rows = np.arange(1, 200)
    seconds = 1.0 + 0.8 * (rows // 40) + 0.002 * rows
    return ConfidenceBudget(3, CostCurve(rows, seconds, np.ones(1), np.zeros(1), np.zeros(1)))


ENGINES = {
    "plain": {"depth": 0},
    "plain, ahead": {"depth": 0, "async_depth": 1},
    "some drafts": {"lengths": SomeDrafts},
    "some drafts, ahead": {"lengths": SomeDrafts, "async_depth": 1},
    "by confidence": {"lengths": staircase},
    "by confidence, ahead": {"lengths": staircase, "async_depth": 1},
}


@cache
def law(**setting: float) -> np.ndarray:
    """[V ** 3]: of an answer's first three tokens."""

    def after(text: list[int]) -> np.ndarray:
        scores_V = TARGET_UVV[text[-2], text[-1]].astype(np.float64)
        answer = text[len(PROMPT) :]
        for token in set(answer):
            scores_V[token] -= setting.get("presence_penalty", 0) + setting.get("frequency_penalty", 0) * answer.count(
                token
            )
        p_V = softmax(scores_V / setting.get("temperature", 1.0))
        order = np.argsort(-p_V, kind="stable")
        p_V[order[int(setting.get("top_k", SIZE)) :]] = 0
        p_V /= p_V.sum()
        p_V[order[np.cumsum(p_V[order]) - p_V[order] >= setting.get("top_p", 1.0)]] = 0
        return p_V / p_V.sum()

    law_W = np.zeros(SIZE**3)
    for word in range(SIZE**3):
        chance, text = 1.0, PROMPT.tolist()
        for token in (word // SIZE**2, word // SIZE % SIZE, word % SIZE):
            chance *= after(text)[token] if chance else 0.0
            text = [*text, token]
        law_W[word] = chance
    return law_W


def answers(
    count: int,
    setting: dict,
    *,
    depth: int = 3,
    async_depth: int = 0,
    lengths: Callable[[], VerifyLengths] | None = None,
    verify: str = "rejection",
    prompts: tuple[np.ndarray, ...] = (PROMPT,),
) -> tuple[np.ndarray, EngineStats]:
    """The tokens [count, 4] of so many answers, and the engine's counts. Arrivals come in bursts of changing size."""
    engine = table_engine(
        verify=verify, depth=depth, async_depth=async_depth, lengths=lengths() if lengths else None, max_num_seqs=32
    )
    rng, tokens, submitted = np.random.default_rng(count), {}, 0
    while submitted < count or engine.has_work:
        for _ in range(min(int(rng.integers(0, 30)), count - submitted)):
            (request_id,) = engine.submit(
                prompts[submitted % len(prompts)], SamplingParams(max_tokens=4, seed=submitted * 7919 + 3, **setting)
            )
            tokens[request_id], submitted = [], submitted + 1
        for event in engine.step():
            assert event.error is None
            tokens[event.request_id] += event.token_ids
    stats = engine.stats()
    engine.close()
    return np.array([tokens[i] for i in sorted(tokens)]), stats


def p_of(tokens: np.ndarray, setting: dict) -> float:
    return p_value(np.bincount(tokens[:, :3] @ SIZE ** np.array([2, 1, 0]), minlength=SIZE**3), law(**setting))


def drafts_were_judged(stats: EngineStats) -> bool:
    return 0 < sum(stats.accepted_at) < sum(stats.checked_at)


@pytest.mark.sample(4)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ENGINES)
def test_the_first_three_tokens_follow_the_targets_law(kind: str, setting: str, full: bool) -> None:
    tokens, stats = answers(MANY if full else FEW, SETTINGS[setting], **ENGINES[kind])
    p = p_of(tokens, SETTINGS[setting])
    print(f"p = {p:.3g} of {len(tokens)} answers, {stats.verify_rounds} rounds with drafts")
    assert p > IMPOSSIBLE
    assert drafts_were_judged(stats) == ("plain" not in kind)


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if "plain" not in kind])
def test_coupled_answers_are_those_of_plain_sampling(kind: str) -> None:
    plain, _ = answers(400, {}, **ENGINES["plain"])
    coupled, stats = answers(400, {}, verify="coupled", **ENGINES[kind])
    np.testing.assert_array_equal(coupled, plain)
    assert drafts_were_judged(stats)


@pytest.mark.parametrize("kind", [kind for kind in ENGINES if "plain" not in kind])
def test_greedy_answers_are_those_without_drafts(kind: str) -> None:
    greedy = {"temperature": 0.0, "frequency_penalty": 0.3}
    prompts = tuple(np.array([u, v]) for u in range(SIZE) for v in range(SIZE))
    plain, _ = answers(len(prompts), greedy, depth=0, prompts=prompts)
    drafted, stats = answers(len(prompts), greedy, prompts=prompts, **ENGINES[kind])
    np.testing.assert_array_equal(drafted, plain)
    assert drafts_were_judged(stats)


FAULTS = {
    "a rejected place is drawn from the target": ("residual", lambda p_V, q_V: p_V),
    "drafts are accepted too often": ("acceptance", lambda p, q: np.minimum(1.0, 1.5 * p / q)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_wrong_law_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, *FAULTS[fault])
    tokens, _ = answers(4 * FEW, {}, **ENGINES["some drafts"])
    assert p_of(tokens, {}) < IMPOSSIBLE
