"""The Markov and confidence step against its twin, equal bits in any company, slots in sequence, times.

GPU only: the kernel is CUDA C++. On a CPU the twin is held against the drafter's own loop, and the arguments are checked.
"""

import pytest
import torch
from deepinfer.kernels import cuda_markov_step as kernel
from torch import Tensor

from deepinfer.ops import markov as twin
from deepinfer.ops.sampling_rows import gumbel, noise_bits

V, D, R = 129280, 5120, kernel.RANK


def weights(vocabulary: int, width: int, device: str) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(2)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, device=device)

    return {
        "head_VR": (normal(vocabulary, R) * 0.1).bfloat16(),
        "embed_VR": normal(vocabulary, R).bfloat16(),
        "projection_X": (normal(width + R) * 0.02).bfloat16(),
    }


def random_inputs(batch: int, vocabulary: int, width: int, device: str, seed: int) -> dict[str, Tensor]:
    """A third of the sequences is greedy."""
    generator = torch.Generator(device).manual_seed(seed)
    chance_B = torch.rand(batch, generator=generator, device=device, dtype=torch.float64)
    return {
        "base_BV": 2.5 * torch.randn(batch, vocabulary, generator=generator, device=device),
        "previous_B": torch.randint(0, vocabulary, (batch,), generator=generator, device=device).int(),
        "hidden_BD": torch.randn(batch, width, generator=generator, device=device).bfloat16(),
        "seed_B": torch.randint(0, 2**62, (batch,), generator=generator, device=device),
        "position_B": torch.randint(0, 2**34, (batch,), generator=generator, device=device),
        "temperature_B": torch.where(torch.arange(batch, device=device) % 3 == 0, 0, 0.3 + chance_B),
    }


def wide(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """bfloat16 numbers as float64."""
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


def gap(inputs: dict[str, Tensor], b: int, ahead: int, *tokens: int) -> float:
    """How far two tokens of a sequence are apart in float64."""
    ids = torch.tensor(tokens, device=inputs["base_BV"].device)
    bias = inputs["head_VR"][ids].double() @ inputs["embed_VR"][inputs["previous_B"][b].clamp(min=0)].double()
    scores = inputs["base_BV"][b, ids].double() + bias
    if inputs["temperature_B"][b] > 0:
        noise = gumbel(noise_bits(inputs["seed_B"][b], inputs["position_B"][b] + ahead, ids, 0))
        scores = scores / inputs["temperature_B"][b] + noise
    return float((scores[0] - scores[1]).abs())


def test_the_twin_is_the_drafters_loop() -> None:
    """With the engine's sampler as the choice; the positions of a block follow each other."""
    batch, vocabulary, width = 6, 96, 32
    inputs = {**random_inputs(batch, vocabulary, width, "cpu", 3), **weights(vocabulary, width, "cpu")}
    ids_V = torch.arange(vocabulary)
    embed_BR = inputs["embed_VR"][inputs["previous_B"].long()].float()
    logits_BV = inputs["base_BV"] + embed_BR @ inputs["head_VR"].float().t()
    step = twin.markov_step(**inputs, ahead=4)
    for b in range(batch):
        noise_V = gumbel(noise_bits(inputs["seed_B"][b], inputs["position_B"][b] + 4, ids_V, 0))
        temperature = inputs["temperature_B"][b]
        score_V = logits_BV[b].double() / temperature + noise_V if temperature > 0 else logits_BV[b]
        assert step.token_B[b] == score_V.argmax()
    inputs["base_BV"][0, 3], inputs["base_BV"][1], inputs["previous_B"][2] = torch.nan, -torch.inf, -1
    assert (twin.markov_step(**inputs, ahead=4).token_B[:4] == -1).tolist() == [True, True, True, False]


def test_arguments_are_checked() -> None:
    inputs = {**random_inputs(2, 64, 32, "cpu", 3), **weights(64, 32, "cpu")}
    with pytest.raises(AssertionError, match="base logits"):
        kernel.markov_step(**{**inputs, "base_BV": inputs["base_BV"].double()}, work=kernel.MarkovWork("cpu"))
    with pytest.raises(AssertionError, match="int32"):
        kernel.markov_step(**{**inputs, "previous_B": inputs["previous_B"].long()}, work=kernel.MarkovWork("cpu"))


def test_rows_lie_as_the_kernel_reads_them() -> None:
    inputs, projection_X = random_inputs(5, 64, 32, "cpu", 1), weights(64, 32, "cpu")["projection_X"]
    named = {name: inputs[name] for name in ("previous_B", "seed_B", "position_B", "temperature_B")}
    kernel._check_rows(5, 32, projection_X=projection_X, **named)
    for name, wrong in (("seed_B", named["seed_B"].int()), ("previous_B", named["previous_B"][:4])):
        with pytest.raises(AssertionError, match=r"int64|one of each a row"):
            kernel._check_rows(5, 32, projection_X=projection_X, **{**named, name: wrong})
    with pytest.raises(AssertionError, match="the projection reads"):
        kernel._check_rows(5, 40, projection_X=projection_X, **named)


@pytest.fixture(scope="module")
def model() -> dict[str, Tensor]:
    return weights(V, D, "cuda")


@pytest.fixture(scope="module")
def work() -> kernel.MarkovWork:
    return kernel.MarkovWork("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 7, 17, 256, 300])
def test_values(batch: int, model: dict[str, Tensor], work: kernel.MarkovWork) -> None:
    inputs = {**random_inputs(batch, V, D, "cuda", batch), **model}
    if batch > 8:
        inputs["base_BV"][2, 5], inputs["base_BV"][3, 6], inputs["base_BV"][4] = torch.nan, torch.inf, -torch.inf
        inputs["previous_B"][5], inputs["base_BV"][6, 77] = -1, -torch.inf
    for base_dtype in (torch.float32, torch.bfloat16):
        inputs["base_BV"] = inputs["base_BV"].to(base_dtype)
        got = kernel.markov_step(**inputs, work=work, ahead=2)
        for first in range(0, batch, 64):
            some = {k: x[first : first + 64] if k.endswith("_B") or "_B" in k else x for k, x in inputs.items()}
            want = twin.markov_step(**wide(some), ahead=2)
            here = slice(first, first + 64)
            torch.testing.assert_close(got.evidence_B[here], want.evidence_B, rtol=1e-4, atol=1e-4)
            for b in (got.token_B[here] != want.token_B).nonzero().flatten().tolist():
                tokens = int(got.token_B[first + b]), int(want.token_B[b])
                assert min(tokens) >= 0 and gap(some, b, 2, *tokens) < 2e-5, (first + b, tokens)


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_any_company(model: dict[str, Tensor], work: kernel.MarkovWork) -> None:
    inputs = random_inputs(256, V, D, "cuda", 5)
    want = kernel.markov_step(**inputs, **model, work=work)
    inputs["base_BV"][:3] = torch.nan
    for size in (1, 2, 7, 64):
        chosen = 3 + torch.randperm(253, generator=torch.Generator().manual_seed(size))[:size]
        chosen = torch.cat([torch.tensor([0]), chosen, torch.tensor([1])]).cuda()
        got = kernel.markov_step(**{k: x[chosen] for k, x in inputs.items()}, **model, work=work)
        for one, other in zip(got, want):
            assert torch.equal(one[1:-1].view(torch.int32), other[chosen][1:-1].view(torch.int32))


@pytest.mark.gpu
def test_slots_in_sequence(model: dict[str, Tensor], work: kernel.MarkovWork) -> None:
    """Five slots, each biased by the one before, written into columns of one tensor."""
    batch, slots = 5, 5
    inputs = random_inputs(batch, V, D, "cuda", 9)
    base_BQV = 2.5 * torch.randn(batch, slots, V, device="cuda")
    hidden_BQD = torch.randn(batch, slots, D, device="cuda").bfloat16()
    token_BX = torch.empty(batch, slots + 1, dtype=torch.int32, device="cuda")
    token_BX[:, 0] = inputs["previous_B"]
    evidence_BQ = torch.empty(batch, slots, device="cuda")
    rest = {name: inputs[name] for name in ("seed_B", "position_B", "temperature_B")} | model
    for slot in range(slots):
        slices = {"base_BV": base_BQV[:, slot], "hidden_BD": hidden_BQD[:, slot], "previous_B": token_BX[:, slot]}
        out = twin.MarkovStep(token_BX[:, slot + 1], evidence_BQ[:, slot])
        kernel.markov_step(**slices, **rest, work=work, ahead=slot, out=out)
        want = twin.markov_step(**wide(slices | rest), ahead=slot)
        assert torch.equal(token_BX[:, slot + 1], want.token_B)
        torch.testing.assert_close(evidence_BQ[:, slot], want.evidence_B, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 8, 64, 128, 256])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speed(
    batch: int, temperature: float, model: dict[str, Tensor], work: kernel.MarkovWork, timed, request
) -> None:
    if request.config.getoption("--time") is None:
        pytest.skip("nothing is timed")
    copies = []
    for copy in range(4):
        inputs = random_inputs(batch, V, D, "cuda", copy)
        inputs["temperature_B"].fill_(temperature)
        copies.append({**inputs, **model, "head_VR": model["head_VR"].clone()})
    calls = [lambda c=c: kernel.markov_step(**c, work=work) for c in copies]
    moved = V * R * 2 + batch * V * 4 + batch * D * 2

    def same_work(c: dict[str, Tensor]) -> Tensor:
        scores_BV = c["base_BV"] + c["embed_VR"][c["previous_B"]] @ c["head_VR"].t()
        if temperature > 0:  # minus the logarithm of exponential noise is Gumbel noise
            scores_BV = scores_BV.div_(temperature).sub_(torch.empty_like(scores_BV).exponential_().log_())
        return scores_BV.argmax(1)

    case = f"{batch} sequences, {'greedy' if temperature == 0 else 'coupled'}"
    peer = "cuBLAS bf16 + argmax" if temperature == 0 else "cuBLAS bf16 + noise + argmax"
    timed("markov step", case, calls, flops=2 * batch * V * R, moved_bytes=moved, runs=20, target="≤ 1.5 × the floor",
          peers={peer: [lambda c=c: same_work(c) for c in copies]})  # fmt: skip
