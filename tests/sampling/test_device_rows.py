"""The device's sampler against coupled verification on the host, round after round: tokens, faults, histories, logprobs.

On a CPU the twins stand in for the kernels, so that both compute in float64 and every token is equal.
"""

import copy

import numpy as np
import pytest
import torch
from device_rounds import DEPTH, EOS, Round, V, new_sampler, random_params, random_round, random_seed

from deepinfer.interfaces import Request, SamplingParams, Verified, VerifyRows
from deepinfer.ops.device import twins
from deepinfer.sampling.device_rows import DeviceSampler
from deepinfer.sampling.history import History
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier


def on_the_device(sampler: Sampler) -> DeviceSampler:
    return DeviceSampler(sampler, twins(), "cpu")


def assert_equal(got: Verified, want: Verified) -> None:
    assert got.token_ids.tolist() == want.token_ids.tolist()
    assert got.token_ids.dtype == want.token_ids.dtype and got.counts.dtype == want.counts.dtype
    assert got.counts.tolist() == want.counts.tolist() and got.failed.tolist() == want.failed.tolist()
    assert got.failures == want.failures
    assert list(got.logprobs) == list(want.logprobs)
    for place, one in want.logprobs.items():
        other = got.logprobs[place]
        assert (other.token_ids.tolist(), other.rank) == (one.token_ids.tolist(), one.rank)
        assert (other.token_ids.dtype, other.logprobs.dtype) == (one.token_ids.dtype, one.logprobs.dtype)
        np.testing.assert_allclose(other.logprobs, one.logprobs, rtol=1e-6)


def histories(sampler: Sampler) -> list[list[int]]:
    found = [edits.history for edits in sampler.params.edits if edits is not None]
    return [history.before(history._length).tolist() for history in found if history is not None]


def verified(device: DeviceSampler, logits_TV: np.ndarray, rows: VerifyRows) -> Verified:
    return device.finish(device.launch(torch.from_numpy(logits_TV), rows))


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
def test_every_round_is_coupled_verifications(seed: int) -> None:
    """Random parameters of 24 sequences over 8 rounds; drafts right and wrong, masks, NaN; now and then a position again."""
    rng, num, size = random_seed(seed), 24, 90 if seed % 4 == 3 else V  # 90: the last word of a mask is used in part
    ours, theirs = new_sampler(num, size), new_sampler(num, size)
    requests = [
        Request(s, rng.integers(0, size, rng.integers(1, 40)), random_params(rng, size), int(rng.integers(2**62)))
        for s in range(num)
    ]
    for slot, request in enumerate(requests):
        ours.admit(slot, request)
        theirs.admit(slot, request)
    device, verifier = on_the_device(ours), CoupledVerifier(theirs)
    positions = np.array([len(request.prompt_ids) for request in requests])
    seen = {"failed": 0, "accepted": 0, "rejected": 0, "short masks": 0, "logprobs": 0, "again": 0}
    for _ in range(8):
        some = np.sort(rng.choice(num, 18, replace=False))
        made: Round = random_round(rng, theirs, some, positions[some])
        want = verifier.verify(made.logits_TV, made.rows)
        got = verified(device, made.logits_TV, made.rows)
        assert_equal(got, want)
        assert histories(ours) == histories(theirs)
        checked = np.diff(made.rows.row_starts) - 1
        seen["failed"] += int(want.failed.sum())
        seen["accepted"] += int((want.counts > 1).sum())
        seen["rejected"] += int(((want.counts <= checked) & ~want.failed).sum())
        seen["short masks"] += made.num_short_masks
        seen["logprobs"] += len(want.logprobs)
        again = rng.random(len(some)) < 0.15  # as after a preemption, or where a step's results were dropped
        seen["again"] += int((again & (want.counts > 0)).sum())
        positions[some] += np.where(again, 0, want.counts)
    assert min(seen.values()) > 0, seen


def test_counts_on_the_device_are_those_on_the_host() -> None:
    rng, num = random_seed(50), 32
    sampler = new_sampler(num)
    for slot in range(num):
        sampler.admit(slot, Request(slot, rng.integers(0, V, 5), random_params(rng), slot))
    made = random_round(rng, copy.deepcopy(sampler), np.arange(num), np.full(num, 5), faults=0.2)
    device = on_the_device(sampler)
    launched = device.launch(torch.from_numpy(made.logits_TV), made.rows)
    assert launched.token_T.dtype == launched.counts_S.dtype == launched.starts_X.dtype == torch.int32
    assert launched.starts_X.tolist() == made.rows.row_starts.tolist()
    assert launched.slots_S.tolist() == list(range(num))
    got = device.finish(launched)
    assert launched.counts_S.tolist() == got.counts.tolist()
    first_S = launched.starts_X[:-1].tolist()
    tokens = [launched.token_T[a : a + n].tolist() for a, n in zip(first_S, got.counts.tolist())]
    assert [token for some in tokens for token in some] == got.token_ids.tolist()
    assert made.num_short_masks and got.failed.any() and (got.counts > 1).any()


def test_rows_of_logits_behind_the_last_are_ignored() -> None:
    sampler = new_sampler(2)
    for slot in range(2):
        sampler.admit(slot, Request(slot, np.array([1, 2]), SamplingParams(temperature=0.0), slot))
    rows = VerifyRows(np.array([1, 0]), np.array([2, 2]), np.array([0, 1, 2]), np.zeros((2, 0), np.int64))
    logits_TV = np.full((5, V), np.nan, np.float32)
    logits_TV[:2] = -np.arange(V)
    logits_TV[1, 9] = 5
    assert verified(on_the_device(sampler), logits_TV, rows).token_ids.tolist() == [0, 9]


def test_nobody_is_sampled() -> None:
    device = on_the_device(new_sampler(2))
    rows = VerifyRows(
        np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros((0, DEPTH), np.int64)
    )
    got = verified(device, np.zeros((0, V), np.float32), rows)
    want = CoupledVerifier(new_sampler(2)).verify(np.zeros((0, V), np.float32), rows)
    assert_equal(got, want)


def test_bfloat16_logits_are_judged_as_they_are() -> None:
    rng, num = random_seed(3), 12
    ours, theirs = new_sampler(num), new_sampler(num)
    for slot in range(num):
        request = Request(slot, rng.integers(0, V, 4), random_params(rng), slot)
        ours.admit(slot, request)
        theirs.admit(slot, request)
    rows = VerifyRows(np.arange(num), np.full(num, 4), np.arange(num + 1), np.zeros((num, 0), np.int64))
    logits_TV = torch.from_numpy(rng.normal(size=(num, V)) * 3).bfloat16()
    device = on_the_device(ours)
    assert_equal(device.finish(device.launch(logits_TV, rows)), CoupledVerifier(theirs).verify(logits_TV, rows))


def test_a_slot_that_is_given_away_does_not_get_the_old_tokens() -> None:
    """The sequence ended while its last rows were under way; results still go to its own history."""
    sampler = new_sampler(1)
    params = SamplingParams(temperature=0.0, presence_penalty=1.0)
    sampler.admit(0, Request(0, np.array([1, 2]), params, 0))
    old = sampler.params.edits[0].history
    device = on_the_device(sampler)
    rows = VerifyRows(np.array([0]), np.array([2]), np.array([0, 1]), np.zeros((1, 0), np.int64))
    launched = device.launch(torch.from_numpy(-np.arange(V, dtype=np.float32)[None]), rows)
    sampler.release(0)
    sampler.admit(0, Request(1, np.array([4, 4, 4]), params, 0))
    device.finish(launched)
    assert old.before(3).tolist() == [1, 2, 0]
    assert isinstance(new := sampler.params.edits[0].history, History) and new.before(3).tolist() == [4, 4, 4]
    rows = VerifyRows(np.array([0]), np.array([3]), np.array([0, 1]), np.zeros((1, 0), np.int64))
    logits_TV = np.zeros((1, V), np.float32)
    logits_TV[0, 0] = 0.5  # penalised in the old answer, not in this one
    assert verified(device, logits_TV, rows).token_ids.tolist() == [0]


def test_penalties_see_the_drafts_before_a_row() -> None:
    """A draft that is accepted is penalised in the rows behind it, and in none before."""
    sampler = new_sampler(1)
    sampler.admit(0, Request(0, np.array([1]), SamplingParams(temperature=0.0, frequency_penalty=1.0), 0))
    rows = VerifyRows(np.array([0]), np.array([1]), np.array([0, 4]), np.array([[8, 8, 9]]))
    logits_TV = np.zeros((4, V), np.float32)
    logits_TV[:, 8], logits_TV[:, 9] = 3.5, 2.2
    assert verified(on_the_device(sampler), logits_TV, rows).token_ids.tolist() == [8, 8, 9, 8]


def test_a_list_leaves_nothing_of_a_step_behind() -> None:
    """Tokens that are listed for one step alone, such as rejected drafts, do not pile up."""
    sampler = new_sampler(1)
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0, min_tokens=50, bad_words=("ab",))
    sampler.admit(0, Request(0, np.array([1]), params, 0))
    device = on_the_device(sampler)
    for number in range(30):
        drafts = np.array([[20 + number, 21 + number, 22 + number]])
        rows = VerifyRows(np.array([0]), np.array([1 + number]), np.array([0, 4]), drafts)
        verified(device, 100 * np.eye(V, dtype=np.float32)[[80, 80, 80, 80]], rows)
    list_ = device._edits._lists[0]
    assert list_ is not None
    assert set(list_.ids_L[: list_.length].tolist()) <= {1, 80, *sampler.params.edits[0].bad_words.always.tolist()}
    assert (list_.place_V >= 0).sum() == list_.length and EOS not in list_.ids_L[: list_.length]
