"""The device's sampler under rejection sampling: the host's verifier, token for token, and the target's law.

On a CPU the twins stand in for the kernels, so that both compute in float64 and every token is equal.
"""

import numpy as np
import pytest
import torch
from chi_square import p_value
from device_rounds import DEPTH, Round, V, new_sampler, random_params, random_round, random_seed

from deepinfer.interfaces import Request, SamplingParams, Verified, VerifyRows
from deepinfer.ops import draft_judgement
from deepinfer.ops.device import twins
from deepinfer.sampling.device_rows import DeviceSampler
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.proposals import DRAFT, STREAM_BITS, Served
from deepinfer.speculation.rejection import Proposal, RejectionVerifier

NUM = 24


def proposals_for(rng: np.random.Generator, made: Round, sampler: Sampler) -> torch.Tensor:
    """Logits [slots · K, V] near the target's, that every draft may have been drawn from; other tokens are often left out."""
    kept_MV = torch.from_numpy(rng.normal(size=(NUM * DEPTH, V)))
    starts = made.rows.row_starts.tolist()
    for r, slot in enumerate(made.rows.slots.tolist()):
        for d, row in enumerate(range(starts[r], starts[r + 1] - 1)):
            logits_V = torch.from_numpy(np.nan_to_num(made.logits_TV[row].astype(np.float64), posinf=0.0, neginf=-30.0))
            kept_MV[slot * DEPTH + d] += logits_V
            left_out = torch.from_numpy(rng.random(V) < 0.3)
            left_out[int(made.rows.drafts[r, d])] = False
            kept_MV[slot * DEPTH + d, left_out] = -torch.inf
    return kept_MV


def remember(verifier: RejectionVerifier, sampler: Sampler, made: Round, kept_MV: torch.Tensor) -> None:
    """As if `verifier` had chosen the drafts itself."""
    counts = np.diff(made.rows.row_starts) - 1
    for r, slot in enumerate(made.rows.slots.tolist()):
        found = verifier._proposals[slot] = []
        for d in range(int(counts[r])):
            temperature = float(sampler.params.temperature_N[slot])
            weights_V = torch.softmax(kept_MV[slot * DEPTH + d] / max(temperature, 1e-3), 0).numpy()
            found.append(Proposal(int(made.rows.drafts[r, d]), weights_V))


def assert_equal(got: Verified, want: Verified) -> None:
    assert got.token_ids.tolist() == want.token_ids.tolist() and got.counts.tolist() == want.counts.tolist()
    assert got.failed.tolist() == want.failed.tolist() and got.failures == want.failures
    assert list(got.logprobs) == list(want.logprobs)
    for place, one in want.logprobs.items():
        other = got.logprobs[place]
        assert (other.token_ids.tolist(), other.rank) == (one.token_ids.tolist(), one.rank)
        np.testing.assert_allclose(other.logprobs, one.logprobs, rtol=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_every_round_is_the_host_verifiers(seed: int) -> None:
    """Random parameters over 6 rounds: filters, penalties, bad words, masks, log probabilities, NaN; drafts of any quality."""
    rng = random_seed(seed)
    ours, theirs = new_sampler(NUM), new_sampler(NUM)
    requests = [
        Request(s, rng.integers(0, V, rng.integers(1, 40)), random_params(rng), int(rng.integers(2**62)))
        for s in range(NUM)
    ]
    for slot, request in enumerate(requests):
        ours.admit(slot, request)
        theirs.admit(slot, request)
    proposed_MV = torch.zeros(NUM * DEPTH, V, dtype=torch.float64)
    device, verifier = (
        DeviceSampler(ours, twins(), "cpu", rejection=True, proposed_MV=proposed_MV),
        RejectionVerifier(theirs),
    )
    positions = np.array([len(request.prompt_ids) for request in requests])
    seen = {"failed": 0, "accepted": 0, "rejected": 0, "logprobs": 0}
    for _ in range(6):
        some = np.sort(rng.choice(NUM, 18, replace=False))
        made = random_round(rng, theirs, some, positions[some])
        proposed_MV.copy_(proposals_for(rng, made, theirs))
        remember(verifier, theirs, made, proposed_MV)
        want = verifier.verify(made.logits_TV, made.rows)
        got = device.finish(device.launch(torch.from_numpy(made.logits_TV.copy()).double(), made.rows))
        assert_equal(got, want)
        checked = np.diff(made.rows.row_starts) - 1
        seen["failed"] += int(want.failed.sum())
        seen["accepted"] += int((want.counts > 1).sum())
        seen["rejected"] += int(((want.counts <= checked) & ~want.failed).sum())
        seen["logprobs"] += len(want.logprobs)
        positions[some] += want.counts
    assert min(seen.values()) > 0, seen


# ---- the law -----------------------------------------------------------------------------------------------------------------


SIZE, SEEDS = 8, 600
RNG = np.random.default_rng(5)
TARGET_V = RNG.normal(size=SIZE).astype(np.float32) * 1.5
DRAFTER_V = TARGET_V + RNG.normal(size=SIZE).astype(np.float32)
SETTINGS = {"plain": {}, "filters": {"temperature": 0.8, "top_k": 6, "top_p": 0.85}}


def law(logits_V: np.ndarray, temperature: float = 1.0, top_k: int = SIZE, top_p: float = 1.0) -> np.ndarray:
    """Written without the sampler's own parts."""
    weights_V = np.exp(logits_V.astype(np.float64) / temperature)
    p_V, order = weights_V / weights_V.sum(), np.argsort(-weights_V, kind="stable")
    p_V[order[top_k:]] = 0
    p_V /= p_V.sum()
    p_V[order[np.cumsum(p_V[order]) - p_V[order] >= top_p]] = 0
    return p_V / p_V.sum()


def first_tokens(setting: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(drafts, first tokens, whether the draft was accepted) of as many sequences with one draft each."""
    sampler, slots = Sampler(SIZE, SEEDS), np.arange(SEEDS)
    for slot in range(SEEDS):
        sampler.admit(slot, Request(slot, np.array([6, 2]), SamplingParams(**setting), slot * 7919 + 3))
    params, proposed_MV = sampler.params, torch.zeros(SEEDS, SIZE, dtype=torch.float64)
    served = Served(
        *(torch.from_numpy(x.view(np.int64)) for x in (slots, params.seed_N, np.full(SEEDS, 1))),
        *(torch.from_numpy(x.copy()) for x in (params.temperature_N, params.top_p_N, params.min_p_N, params.top_k_N)),
    )
    drawn = twins().sample_rows(
        torch.from_numpy(np.tile(DRAFTER_V, (SEEDS, 1))).double(),
        served.rows(1, torch.zeros(0, 1, dtype=torch.int32)),
        stream=DRAFT | 0 << STREAM_BITS,
        kept_XV=proposed_MV,
        kept_row_R=torch.arange(SEEDS).int(),
    )
    drafts = drawn.token_R.numpy().astype(np.int64)[:, None]
    device = DeviceSampler(sampler, twins(), "cpu", rejection=True, proposed_MV=proposed_MV)
    rows = VerifyRows(slots, np.full(SEEDS, 2), 2 * np.arange(SEEDS + 1), drafts)
    got = device.finish(device.launch(torch.from_numpy(np.tile(TARGET_V, (2 * SEEDS, 1))).double(), rows))
    return drafts[:, 0], got.token_ids[np.cumsum(got.counts) - got.counts], got.counts == 2


@pytest.mark.parametrize("setting", ["plain", pytest.param("filters", marks=pytest.mark.slow)])
def test_the_first_token_has_the_targets_law(setting: str) -> None:
    p_V, q_V = (law(logits_V, **SETTINGS[setting]) for logits_V in (TARGET_V, DRAFTER_V))
    drafts, first, accepted = first_tokens(SETTINGS[setting])
    assert p_value(np.bincount(drafts, minlength=SIZE), q_V) > 1e-3
    assert p_value(np.bincount(first, minlength=SIZE), p_V) > 1e-3
    overlap = np.minimum(p_V, q_V).sum()
    assert abs(accepted.mean() - overlap) < 3 * np.sqrt(overlap * (1 - overlap) / SEEDS)
    assert (first[accepted] == drafts[accepted]).all() and 0.3 < overlap < 0.95


@pytest.mark.slow
def test_a_token_from_p_in_a_rejected_drafts_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    true = draft_judgement._instead
    monkeypatch.setattr(draft_judgement, "_instead", lambda p_V, q_V, *place: true(p_V, torch.zeros_like(q_V), *place))
    _, first, _ = first_tokens({})
    assert p_value(np.bincount(first, minlength=SIZE), law(TARGET_V)) < 1e-6
