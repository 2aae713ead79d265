"""Checking by confidence leaves the joint law of two requests as it is: every outcome is counted, none drawn.

Each request drafts two tokens of a vocabulary of two. Its second confidence depends on its first draft, as a confidence head's
does. Drafts are judged as in rejection mode; what is not drafted or checked follows the target's law. Two schedulers that
look at what they must not are caught by the same count.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from msgspec import Struct

from deepinfer.speculation.allocation import allocate, survival
from deepinfer.speculation.budget import ConfidenceBudget, best_budget
from deepinfer.speculation.cost_curve import CostCurve

INSTANCES = 40
DEPTH = 2
WORDS = list(
    itertools.product(range(2), repeat=DEPTH + 1)
)  # of three tokens: what two drafts and the token after decide
DRAFTS = list(itertools.product(range(2), repeat=DEPTH))
# seconds of 2 … 6 rows: cheap, then a step, then nearly flat
STAIRCASE_S = np.array([1.0, 2.0, 2.05, 2.1, 2.15])


class Request(Struct, frozen=True):
    """Laws of one request: first token [2], second [2, 2] by the first, third [2, 2, 2]; drafts likewise."""

    target: tuple[np.ndarray, np.ndarray, np.ndarray]
    draft: tuple[np.ndarray, np.ndarray]

    def target_at(self, word: tuple[int, ...]) -> np.ndarray:
        return self.target[len(word)][word]

    def draft_at(self, word: tuple[int, ...]) -> np.ndarray:
        return self.draft[len(word)][word]

    def confidence(self, drafts: tuple[int, ...]) -> np.ndarray:
        """The acceptance that a perfect head foresees at each draft, from the drafts before it only."""
        heads = [np.minimum(self.target_at(drafts[:k]), self.draft_at(drafts[:k])).sum() for k in range(DEPTH)]
        return np.array(heads, dtype=np.float32)

    def law_of_drafts(self, drafts: tuple[int, ...]) -> float:
        return float(np.prod([self.draft_at(drafts[:k])[drafts[k]] for k in range(DEPTH)]))

    def law_of_word(self, word: tuple[int, ...], start: int = 0) -> float:
        """Of its tokens from `start` on, under the target."""
        return float(np.prod([self.target_at(word[:k])[word[k]] for k in range(start, DEPTH + 1)]))

    def judged(self, word: tuple[int, ...], drafts: tuple[int, ...], length: int) -> float:
        """Chance of `word` after `length` of `drafts` were checked in rejection mode."""
        chance = 1.0
        for k in range(length):
            target, draft = self.target_at(drafts[:k]), self.draft_at(drafts[:k])
            accept = min(1.0, target[drafts[k]] / draft[drafts[k]])
            if word[k] == drafts[k]:
                chance *= accept  # a rejected draft is never the residual's choice, unless both laws are one
                continue
            rest = np.maximum(target - draft, 0)
            residual = rest[word[k]] / rest.sum() if rest.sum() > 0 else 0.0
            return chance * (1 - accept) * residual * self.law_of_word(word, k + 1)
        return chance * self.law_of_word(word, length)


def random_request(rng: np.random.Generator) -> Request:
    def laws(*shape: int) -> np.ndarray:
        return rng.dirichlet([0.7, 0.7], size=shape)

    return Request(target=(laws(), laws(2), laws(2, 2)), draft=(laws(), laws(2)))


Lengths = Callable[[tuple[Request, Request], tuple[tuple[int, ...], ...]], np.ndarray]


def distance(requests: tuple[Request, Request], lengths_of: Lengths) -> float:
    """Total variation between the joint law of both outputs and the target's."""
    joint = np.zeros((len(WORDS), len(WORDS)))
    for drafts in itertools.product(DRAFTS, repeat=2):
        lengths = lengths_of(requests, drafts)
        first, second = (
            np.array([request.judged(word, drafts[r], int(lengths[r])) for word in WORDS])
            for r, request in enumerate(requests)
        )
        joint += requests[0].law_of_drafts(drafts[0]) * requests[1].law_of_drafts(drafts[1]) * np.outer(first, second)
    asked = [np.array([request.law_of_word(word) for word in WORDS]) for request in requests]
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    return float(np.abs(joint - np.outer(*asked)).sum() / 2)


def live(requests: tuple[Request, Request], drafts: tuple[tuple[int, ...], ...]) -> np.ndarray:
    return np.stack([request.confidence(of) for request, of in zip(requests, drafts)])


def handed_out(budget: int) -> Lengths:
    return lambda requests, drafts: allocate(live(requests, drafts), np.full(2, DEPTH), budget)


def looks_at_live_confidences(requests: tuple[Request, Request], drafts: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """The planted mistake: the best budget for what was just drafted."""
    confidence = live(requests, drafts)
    return allocate(confidence, np.full(2, DEPTH), best_budget(survival(confidence), STAIRCASE_S))


def looks_at_the_draft(requests: tuple[Request, Request], drafts: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Another: drafts are checked as far as the very tokens look likely."""
    lengths = []
    for request, of in zip(requests, drafts):
        ratios = [request.target_at(of[:k])[of[k]] / request.draft_at(of[:k])[of[k]] for k in range(DEPTH)]
        lengths.append(next((k for k, ratio in enumerate(ratios) if ratio < 0.8), DEPTH))
    return np.array(lengths)


@pytest.fixture(scope="module")
def instances() -> list[tuple[Request, Request]]:
    rng = np.random.default_rng(4)
    return [(random_request(rng), random_request(rng)) for _ in range(INSTANCES)]


def test_old_budget_and_live_ranking_keep_the_law(instances: list[tuple[Request, Request]]) -> None:
    """The budget of `ConfidenceBudget` from confidences of other drafts, handed out by this step's."""
    curve = CostCurve(np.arange(2, 7), STAIRCASE_S, np.array([1]), np.zeros(1), np.zeros(1))
    scheduled, rng, budgets = ConfidenceBudget(DEPTH, curve), np.random.default_rng(5), set()
    for requests in instances:
        old = rng.random((2, DEPTH), dtype=np.float32)
        budget, draft = scheduled.budget(old, other_rows=0)
        budgets.add(budget)
        assert draft and distance(requests, handed_out(budget)) <= 1e-12
    assert len(budgets) > 2, "only ever the same budget"


@pytest.mark.parametrize("budget", range(2 * DEPTH + 1))
def test_any_budget_keeps_the_law(instances: list[tuple[Request, Request]], budget: int) -> None:
    assert max(distance(requests, handed_out(budget)) for requests in instances) <= 1e-12


def test_lengths_do_differ_by_what_was_drafted(instances: list[tuple[Request, Request]]) -> None:
    """Else the tests above would be about fixed lengths."""
    given = [{tuple(handed_out(2)(two, drafts)) for drafts in itertools.product(DRAFTS, repeat=2)} for two in instances]
    assert sum(len(lengths) > 1 for lengths in given) > INSTANCES / 10


@pytest.mark.parametrize("scheduler", [looks_at_live_confidences, looks_at_the_draft])
def test_a_scheduler_that_looks_ahead_is_caught(instances: list[tuple[Request, Request]], scheduler: Lengths) -> None:
    assert max(distance(requests, scheduler) for requests in instances) > 0.01


def test_a_smooth_cost_would_not_catch_it(instances: list[tuple[Request, Request]]) -> None:
    """Why the cost above is a staircase: with a concave rate the search stops where a forward walk would."""
    smooth_s = 4 + np.arange(2.0, 7.0)

    def on_smooth(requests: tuple[Request, Request], drafts: tuple[tuple[int, ...], ...]) -> np.ndarray:
        confidence = live(requests, drafts)
        return allocate(confidence, np.full(2, DEPTH), best_budget(survival(confidence), smooth_s))

    assert max(distance(requests, on_smooth) for requests in instances) <= 1e-12
