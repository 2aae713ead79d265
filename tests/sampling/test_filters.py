"""The filters against their definition, written out token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.filters import best, survivors
from deepinfer.sampling.history import History
from deepinfer.sampling.logprobs import log_softmax, token_logprobs
from deepinfer.sampling.sampler import Sampler

# few distinct values, so that ties are common; weights are powers of two, so that sums are exact
SCORES = st.lists(st.sampled_from([-np.inf, 0.0, 1.0, 2.0, 5.0]), min_size=1, max_size=12).filter(
    lambda scores: max(scores) > -np.inf
)


def by_the_book(scores: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    order = sorted((i for i in range(len(scores)) if scores[i] > -np.inf), key=lambda i: (-scores[i], i))
    kept = order[:top_k] if top_k else order
    weight = {i: 2.0 ** scores[i] for i in kept}
    total, reached, nucleus = sum(weight.values()), 0.0, []
    for i in kept:
        if reached < top_p * total:
            nucleus.append(i)
        reached += weight[i]
    return sorted(i for i in nucleus if weight[i] >= min_p * weight[kept[0]])


@given(
    SCORES,
    st.integers(0, 13),
    st.sampled_from([1.0, 0.97, 0.8, 0.5, 0.23, 1e-9]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)
def test_survivors_are_those_of_the_definition(scores: list[float], top_k: int, top_p: float, min_p: float) -> None:
    scores_V = np.array(scores)
    found = survivors(scores_V * np.log(2), top_k, top_p, min_p)
    assert found.tolist() == by_the_book(scores_V, top_k, top_p, min_p)


def test_borders_of_top_p_and_min_p() -> None:
    scores_V = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    assert survivors(scores_V, 0, 0.74, 0.0).tolist() == survivors(scores_V, 0, 0.51, 0.0).tolist() == [0, 1]
    assert survivors(scores_V, 0, 0.49, 0.0).tolist() == [0]
    assert survivors(scores_V, 0, 0.76, 0.0).tolist() == [0, 1, 2]
    assert survivors(scores_V, 0, 1.0, 0.49).tolist() == [0, 1] and survivors(scores_V, 0, 1.0, 0.51).tolist() == [0]
    assert survivors(scores_V, 2, 0.7, 0.0).tolist() == [0, 1]  # after top-k the first has two thirds, not half


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=1, max_size=9), st.integers(0, 10))
def test_best_is_a_stable_sort_cut_short(values: list[float], k: int) -> None:
    assert best(np.array(values), k).tolist() == sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def test_ranks_of_equals_rise_with_their_ids() -> None:
    logprobs_V = log_softmax(np.array([0.0, 3.0, 3.0, 3.0, 5.0], np.float32))
    assert [token_logprobs(logprobs_V, token, 2).rank for token in range(5)] == [5, 2, 3, 4, 1]
    assert token_logprobs(logprobs_V, 3, 2).token_ids.tolist() == [3, 4, 1]


def test_a_history_that_is_written_anew_counts_what_stands_in_it() -> None:
    rng = np.random.default_rng(0)
    history, known = History(np.array([1, 1, 4]), 6), [1, 1, 4]
    for _ in range(2000):
        position = int(rng.integers(3, len(known) + 1))
        if rng.random() < 0.5:
            token = int(rng.integers(6))
            history.write(position, token)
            known = [*known[:position], token]
        else:
            expected = np.bincount(known[3:position], minlength=6)
            assert history.answer_counts(position).tolist() == expected.tolist()
            assert history.seen(position).tolist() == (np.bincount(known[:position], minlength=6) > 0).tolist()
            assert history.before(position).tolist() == known[:position]


def test_rejected_tokens_leave_no_trace_in_penalties() -> None:
    """A position is sampled, found wrong, and sampled again with other logits."""
    sampler = Sampler(4, 1)
    sampler.admit(0, Request(0, np.array([3]), SamplingParams(temperature=0.0, presence_penalty=2.0), 0))

    def choose(position: int, *logits: float) -> int:
        sampled = sampler.sample(np.array([logits], np.float32), np.array([0]), np.array([position]))
        return int(sampled.token_ids[0])

    assert choose(1, 9, 0, 0, 0) == 0 and choose(2, 5, 4, 0, 0) == 1  # 0 is penalised: 5 - 2 < 4
    assert choose(1, 0, 0, 9, 0) == 2  # now the first token is another one
    assert choose(2, 5, 4, 0, 0) == 0
