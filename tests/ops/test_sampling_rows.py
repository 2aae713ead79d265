"""The sampler's twin for devices against the sampler of the engine, and its acceptance against coupled verification."""

import numpy as np
import pytest
import torch

from deepinfer.interfaces import Request, SamplingParams, VerifyRows
from deepinfer.ops.sampling_rows import SamplingRows, accepted_lengths, noise_bits, sample_rows
from deepinfer.sampling import philox
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.coupled import CoupledVerifier

V, EOS = 96, 7


def random_params(rng: np.random.Generator) -> SamplingParams:
    def maybe(value: float, off: float) -> float:
        return float(value) if rng.random() < 0.5 else off

    logprobs = int(rng.integers(0, 12)) if rng.random() < 0.6 else None
    ids = rng.choice(V, 6, replace=False)
    return SamplingParams(
        temperature=maybe(rng.uniform(0.2, 2), 0.0 if rng.random() < 0.5 else 1.0),
        top_k=int(maybe(rng.integers(1, 20), 0)),
        top_p=maybe(rng.uniform(0.1, 1), 1.0),
        min_p=maybe(rng.uniform(0, 0.3), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        logit_bias={int(i): float(rng.uniform(-4, 4)) for i in ids} if rng.random() < 0.5 else None,
        min_tokens=int(maybe(rng.integers(1, 8), 0)),
        logprobs=logprobs,
        logprobs_mode="processed" if rng.random() < 0.5 else "raw",
    )


def as_rows(
    params: list[SamplingParams],
    seeds: np.ndarray,
    prompts: list[np.ndarray],
    answers: list[list[int]],
    masks: dict[int, np.ndarray],
) -> SamplingRows:
    """The engine's parameters and histories in the shape that devices take."""
    starts, ids, biases, counts = [0], [], [], []
    for one, prompt, answer in zip(params, prompts, answers):
        bias = dict(one.logit_bias or {})
        if len(answer) < one.min_tokens:
            bias[EOS] = -np.inf
        penalised = (one.repetition_penalty, one.presence_penalty, one.frequency_penalty) != (1, 0, 0)
        seen = {*prompt.tolist(), *answer} if penalised else set()
        for token in sorted(seen | set(bias)):
            ids.append(token)
            biases.append(bias.get(token, 0.0))
            counts.append(2 * answer.count(token) + (token in prompt) if penalised else 0)
        starts.append(len(ids))
    words = np.stack([*masks.values(), np.zeros(V // 32, np.uint32)]).astype(np.uint32).view(np.int32)

    def ints(values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    def floats(name: str) -> torch.Tensor:
        return torch.tensor([getattr(one, name) for one in params], dtype=torch.float64)

    return SamplingRows(
        seed_R=torch.from_numpy(seeds.view(np.int64)),
        position_R=torch.tensor([len(prompt) + len(answer) for prompt, answer in zip(prompts, answers)]),
        temperature_R=floats("temperature"),
        top_p_R=floats("top_p"),
        min_p_R=floats("min_p"),
        repetition_R=floats("repetition_penalty"),
        frequency_R=floats("frequency_penalty"),
        presence_R=floats("presence_penalty"),
        top_k_R=ints([one.top_k for one in params]),
        num_logprobs_R=ints([-1 if one.logprobs is None else one.logprobs for one in params]),
        processed_R=ints([int(one.logprobs_mode == "processed") for one in params]),
        mask_row_R=ints([list(masks).index(r) if r in masks else -1 for r in range(len(params))]),
        masks_MW=torch.from_numpy(words),
        edit_starts_X=ints(starts),
        edit_ids_E=ints(ids),
        edit_biases_E=torch.tensor(biases, dtype=torch.float64),
        edit_counts_E=ints(counts),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_twin_is_the_engines_sampler(seed: int) -> None:
    rng, num = np.random.default_rng(seed), 60
    sampler = Sampler(V, num, eos_token_ids=[EOS])
    params = [random_params(rng) for _ in range(num)]
    prompts = [rng.integers(0, V, rng.integers(1, 9)) for _ in range(num)]
    answers = [rng.integers(0, V, rng.integers(0, 9)).tolist() for _ in range(num)]
    seeds = rng.integers(0, 2**64, num, dtype=np.uint64)
    logits_RV = (rng.normal(size=(num, V)) * 3).astype(np.float32)
    logits_RV[::5] = np.round(logits_RV[::5])  # ties
    logits_RV[3, 4], logits_RV[4, 5], logits_RV[8] = np.nan, np.inf, -np.inf
    masks = {r: rng.integers(0, 2**32, V // 32, dtype=np.uint32) for r in range(0, num, 3)}
    masks[9] = np.zeros(V // 32, np.uint32)
    for slot in range(num):
        sampler.admit(slot, Request(slot, prompts[slot], params[slot], int(seeds[slot])))
        sampler.record(slot, len(prompts[slot]), answers[slot])
    rows = as_rows(params, seeds, prompts, answers, masks)
    want = sampler.sample(logits_RV, np.arange(num), rows.position_R.numpy(), masks)
    got = sample_rows(torch.from_numpy(logits_RV), rows, columns=13)
    assert got.token_R.tolist() == want.token_ids.tolist()
    assert (got.fault_R.numpy() != 0).tolist() == want.failed.tolist()
    for r in range(num):
        if r not in want.logprobs:
            assert (got.id_RN[r] == -1).all()
            continue
        one = want.logprobs[r]
        assert got.id_RN[r, : len(one.token_ids)].tolist() == one.token_ids.tolist(), r
        np.testing.assert_allclose(got.logprob_RN[r, : len(one.token_ids)], one.logprobs, rtol=1e-6)
        assert got.rank_R[r] == one.rank


def test_noise_has_the_bits_of_the_engines() -> None:
    rng = np.random.default_rng(5)
    seeds, positions = rng.integers(0, 2**64, 50, dtype=np.uint64), rng.integers(0, 2**40, 50, dtype=np.uint64)
    ids = rng.integers(0, 1 << 17, 50, dtype=np.uint64)
    got = noise_bits(*(torch.from_numpy(x.view(np.int64)) for x in (seeds, positions, ids)), 5)
    assert np.array_equal((2 * got.double().numpy() + 1) * 2.0**-53, philox.uniform(seeds, positions, ids, 5))


@pytest.mark.parametrize("seed", range(3))
def test_accepted_lengths_are_coupled_verifications(seed: int) -> None:
    rng, num, depth = np.random.default_rng(seed), 40, 5
    sampler = Sampler(V, num)
    for slot in range(num):
        sampler.admit(slot, Request(slot, np.array([1, 2]), SamplingParams(), slot))
    num_drafts = rng.integers(0, depth + 1, num)
    starts = np.concatenate([[0], np.cumsum(num_drafts + 1)])
    logits_TV = rng.normal(size=(starts[-1], V)).astype(np.float32)
    logits_TV[rng.random(starts[-1]) < 0.1, 3] = np.nan
    slots = np.repeat(np.arange(num), num_drafts + 1)
    positions = 2 + np.concatenate([np.arange(n + 1) for n in num_drafts])
    tokens_T = sampler.sample(logits_TV, slots, positions).token_ids
    drafts = rng.integers(0, V, (num, depth))
    for s in range(num):  # mostly right
        for d in range(num_drafts[s]):
            if rng.random() < 0.7:
                drafts[s, d] = tokens_T[starts[s] + d]
    rows = VerifyRows(np.arange(num), np.full(num, 2), starts, drafts)
    want = CoupledVerifier(sampler).verify(logits_TV, rows)
    got = accepted_lengths(*(torch.from_numpy(x).int() for x in (tokens_T, drafts, starts)))
    assert got.tolist() == want.counts.tolist()
