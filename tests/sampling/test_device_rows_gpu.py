"""The device's sampler on a GPU: the kernels on what it asks of them, against the twins and against the sampler of the host."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from device_rounds import DEPTH, Round, new_sampler, random_params, random_round, random_seed

from deepinfer.interfaces import Request, SamplingParams, Verified, VerifyRows
from deepinfer.ops import sampling_rows as twin
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.ops.sampling_rows import SampledRows, SamplingRows
from deepinfer.sampling.device_rows import DeviceSampler
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier

pytestmark = pytest.mark.gpu
V = 4096
GAP = 2  # units in the last place of a float32: what its edits are rounded to decides closer calls


class Listener:
    """Kernels whose sampler notes what it was asked and what it answered."""

    def __init__(self) -> None:
        from deepinfer.ops.hopper import hopper

        self._kernels = hopper()
        self.calls: list[tuple[torch.Tensor, SamplingRows, int, SampledRows]] = []
        self.ops: DeviceOps = replace(self._kernels, sample_rows=self._sample)

    def _sample(self, logits_RV: torch.Tensor, rows: SamplingRows, *, columns: int = 0) -> SampledRows:
        found = self._kernels.sample_rows(logits_RV, rows, columns=columns)
        self.calls.append((logits_RV, rows, columns, found))
        return found


def admitted(num: int, seed: int, **kept: Any) -> tuple[Sampler, Sampler, np.random.Generator]:
    """Two samplers with the same random requests, of which some fields may be given."""
    import msgspec

    rng = random_seed(seed)
    ours, theirs = new_sampler(num, V), new_sampler(num, V)
    for slot in range(num):
        params = msgspec.structs.replace(random_params(rng), **kept)
        request = Request(slot, rng.integers(0, V, rng.integers(1, 300)), params, int(rng.integers(2**62)))
        ours.admit(slot, request)
        theirs.admit(slot, request)
    return ours, theirs, rng


def new_round(rng: np.random.Generator, sampler: Sampler) -> Round:
    num = sampler.num_slots
    positions = np.array([len(sampler.params.prompts[slot]) for slot in range(num)])
    return random_round(rng, sampler, np.arange(num), positions)


def finished(device: DeviceSampler, made: Round) -> Verified:
    launched = device.launch(torch.from_numpy(made.logits_TV).cuda(), made.rows)
    torch.cuda.synchronize()
    return device.finish(launched)


def gap_units(logits_V: torch.Tensor, rows: SamplingRows, r: int, *tokens: int) -> float:
    """How far two tokens' scores with noise are apart in float64, in units in the last place of a float32."""
    ids = torch.tensor(tokens, device=logits_V.device)
    scores = twin.edited_logits(logits_V, rows, r)[ids]
    if rows.temperature_R[r] >= twin.GREEDY_BELOW:
        noise = twin.gumbel(twin.noise_bits(rows.seed_R[r], rows.position_R[r], ids, 0))
        scores = scores / rows.temperature_R[r] + noise
    return float((scores[0] - scores[1]).abs() / 2.0 ** (math.floor(math.log2(float(scores.abs().max()))) - 23))


@pytest.mark.parametrize("seed", range(3))
def test_kernels_give_what_the_twins_give_for_the_same_rows(seed: int) -> None:
    ours, theirs, rng = admitted(40, seed)
    made, listener = new_round(rng, theirs), Listener()
    finished(DeviceSampler(ours, listener.ops, "cuda"), made)
    ((logits_TV, rows, columns, got),) = listener.calls
    want = twin.sample_rows(logits_TV, rows, columns=columns, rounded=True)
    moved_T = (got.kept_R - want.kept_R).abs()
    assert int(moved_T.max()) <= 1 and int(moved_T.sum()) <= 2
    same_T = moved_T == 0
    for name in ("token_R", "fault_R", "id_RN", "rank_R"):
        assert torch.equal(getattr(got, name)[same_T], getattr(want, name)[same_T]), name
    torch.testing.assert_close(got.logprob_RN[same_T], want.logprob_RN[same_T], rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_the_twins(seed: int) -> None:
    """The whole way there and back, where no cut of top-p may move: every token, fault and rank."""
    ours, theirs, rng = admitted(40, 10 + seed, top_p=1.0)
    made = new_round(rng, theirs)
    rounded = replace(twins(), sample_rows=partial(twin.sample_rows, rounded=True))
    host = DeviceSampler(theirs, rounded, "cpu")
    want = host.finish(host.launch(torch.from_numpy(made.logits_TV), made.rows))
    got = finished(DeviceSampler(ours, Listener().ops, "cuda"), made)
    assert got.token_ids.tolist() == want.token_ids.tolist() and got.counts.tolist() == want.counts.tolist()
    assert got.failures == want.failures and got.failed.tolist() == want.failed.tolist() and want.failures
    assert list(got.logprobs) == list(want.logprobs) and want.logprobs
    for place, one in want.logprobs.items():
        other = got.logprobs[place]
        assert (other.token_ids.tolist(), other.rank) == (one.token_ids.tolist(), one.rank)
        np.testing.assert_allclose(other.logprobs, one.logprobs, rtol=2e-6, atol=2e-6)


def test_tokens_are_the_hosts_but_for_two_units() -> None:
    """Against float64 on the host: where a sequence differs, its first other token was as good within two units."""
    different = sequences = 0
    for seed in range(4):
        ours, theirs, rng = admitted(48, 20 + seed, top_p=1.0, top_k=0, min_p=0.0)
        made, listener = new_round(rng, theirs), Listener()
        want = CoupledVerifier(theirs).verify(made.logits_TV, made.rows)
        got = finished(DeviceSampler(ours, listener.ops, "cuda"), made)
        logits_TV, rows, *_ = listener.calls[0]
        ends = np.cumsum(got.counts), np.cumsum(want.counts)
        for r in range(48):
            tokens, others = (one.token_ids[end[r] - one.counts[r] : end[r]] for one, end in zip((got, want), ends))
            sequences += 1
            apart = next((d for d, (a, b) in enumerate(zip(tokens, others)) if a != b), None)
            if apart is None:
                assert len(tokens) == len(others)
                continue
            different += 1
            row = int(made.rows.row_starts[r]) + apart
            assert gap_units(logits_TV[row], rows, row, int(tokens[apart]), int(others[apart])) <= GAP
    print(f"{different} of {sequences} sequences differ")
    assert different <= 2


def test_launching_waits_for_nothing() -> None:
    """Masks, penalties behind drafts, log probabilities: whatever is asked, the host goes on at once."""
    ours, theirs, rng = admitted(24, 30)
    device = DeviceSampler(ours, Listener().ops, "cuda")
    rounds = [new_round(rng, theirs) for _ in range(3)]
    finished(device, rounds[0])
    logits = [torch.from_numpy(made.logits_TV).cuda() for made in rounds]
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [device.launch(one, made.rows) for one, made in zip(logits, rounds)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rounds[1].rows.masks and launched[1].columns and launched[1].histories


def test_padded_rows_and_company_change_no_bits() -> None:
    ours, theirs, rng = admitted(32, 40)
    made, listener = new_round(rng, theirs), Listener()
    device = DeviceSampler(ours, listener.ops, "cuda")
    logits_TV = torch.from_numpy(made.logits_TV).cuda()
    padded = torch.cat([logits_TV, torch.full((7, V), torch.nan, device="cuda")])
    alone = [r for r in range(32) if r % 3 == 0]
    starts = made.rows.row_starts
    picked = np.concatenate([np.arange(starts[r], starts[r + 1]) for r in alone])
    few = VerifyRows(
        made.rows.slots[alone],
        made.rows.positions[alone],
        np.concatenate([[0], np.cumsum(np.diff(starts)[alone])]),
        made.rows.drafts[alone],
        {i: made.rows.masks[r] for i, r in enumerate(alone) if r in made.rows.masks},
    )
    all_, some = device.launch(padded, made.rows), device.launch(logits_TV[picked], few)
    torch.cuda.synchronize()
    whole, part = listener.calls[0][3], listener.calls[1][3]
    columns = min(all_.columns, some.columns)
    for name in ("token_R", "fault_R", "kept_R"):
        assert torch.equal(getattr(whole, name)[picked], getattr(part, name)), name
    logprobs = [one.logprob_RN[:, :columns].contiguous().view(torch.int32) for one in (whole, part)]
    assert torch.equal(logprobs[0][picked], logprobs[1])
    assert some.counts_S.tolist() == all_.counts_S[alone].tolist()


def test_many_sequences_with_nothing_but_a_temperature() -> None:
    """The common step: one row each, tokens alone come back."""
    num = 256
    ours, theirs = new_sampler(num, V), new_sampler(num, V)
    for slot in range(num):
        request = Request(slot, np.array([1, 2, 3]), SamplingParams(temperature=0.8), slot)
        ours.admit(slot, request)
        theirs.admit(slot, request)
    rows = VerifyRows(np.arange(num), np.full(num, 3), np.arange(num + 1), np.zeros((num, DEPTH), np.int64))
    logits_TV = (random_seed(1).normal(size=(num, V)) * 3).astype(np.float32)
    device = DeviceSampler(ours, Listener().ops, "cuda")
    launched = device.launch(torch.from_numpy(logits_TV).cuda(), rows)
    torch.cuda.synchronize()
    assert launched.fetched.is_pinned() and launched.fetched[:num].tolist() == launched.token_T.tolist()
    want = CoupledVerifier(theirs).verify(logits_TV, rows)
    assert (device.finish(launched).token_ids != want.token_ids).sum() <= 1
