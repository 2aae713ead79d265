"""LOSSY FP8 products in 128 × 128 blocks (CUDA C++): against the twin on the same codes in float64, what they lose, and timed.

On a CPU: the weight's new order and the size of the loss. The product itself is GPU-only.
"""

import pytest
import torch
from deepinfer.kernels.cuda_fp8_linear import random_fp8_weight
from deepinfer.kernels.cuda_fp8_linear_128 import (
    fp8_linear_128,
    prepare_fp8_weight_128,
    restore_codes_128,
    scales_by_column,
)

from deepinfer.formats import fake_fp8_rows, quantise_fp8_blocks
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.fp8_linear_128 import fp8_linear_128 as twin
from deepinfer.ops.fp8_linear_128 import quantise_rows_128, requantise_128

WEIGHTS = {
    "attention out": (5120, 8192),
    "q up": (32768, 1280),
    "shared expert up": (4608, 5120),
    "shared expert down": (5120, 2304),
}


def plausible_weight(outputs: int, inputs: int, seed: int, device: str = "cuda") -> Fp8Weight:
    """Normal numbers whose rows differ in size, as the release stores them."""
    generator = torch.Generator(device).manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator, device=device) * inputs**-0.5
    return Fp8Weight(*quantise_fp8_blocks(weight * torch.randn(outputs, 1, generator=generator, device=device).exp()))


def activations(num_tokens: int, inputs: int, seed: int, device: str = "cuda") -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return fake_fp8_rows(torch.randn(num_tokens, inputs, generator=generator, device=device).bfloat16())


def test_a_weight_is_swizzled_and_back() -> None:
    weight = requantise_128(random_fp8_weight(256, 384, 0, "cpu"))
    prepared = prepare_fp8_weight_128(weight)
    assert torch.equal(restore_codes_128(prepared).view(torch.uint8), weight.codes_NK.view(torch.uint8))
    row, column = 13, 3 * 16 + 5
    lies = row * 128 + (column // 16 ^ row % 8) * 16 + column % 16
    assert prepared.records[1, 2, lies] == weight.codes_NK.view(torch.uint8)[128 + row, 256 + column]
    assert (prepared.records[1, 2, 16384:].view(torch.float32) == 2.0 ** (weight.scale[1, 2].item() - 127)).all()


def test_what_is_lost_is_small_but_not_nothing() -> None:
    weight, x_TK = plausible_weight(128, 256, 0, "cpu"), activations(9, 256, 1, "cpu")
    exact = x_TK.double() @ weight.numbers(torch.float64).t()
    lossy = twin(*quantise_rows_128(x_TK), requantise_128(weight), torch.float64)
    assert 0 < (lossy - exact).norm() / exact.norm() < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 128, 300, 1000])
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 256), (1792, 5120), (5120, 2304)])
def test_values_and_rows_without_neighbours(outputs: int, inputs: int, num_tokens: int) -> None:
    """The FP8 units keep about 13 bits of a sum of 128 columns: 2^-12 of the sum of magnitudes, and bfloat16's rounding."""
    weight = requantise_128(plausible_weight(outputs, inputs, 0))
    prepared, (codes, scale) = prepare_fp8_weight_128(weight), quantise_rows_128(activations(num_tokens, inputs, 1))
    torch.full((num_tokens, outputs), torch.nan, dtype=torch.bfloat16, device="cuda")
    out_TN = fp8_linear_128(codes, scales_by_column(scale), prepared)
    expected = twin(codes, scale, weight, torch.float64)
    absolute = codes.float().abs().to(torch.float8_e4m3fn), weight.codes_NK.float().abs().to(torch.float8_e4m3fn)
    magnitude = twin(absolute[0], scale, type(weight)(absolute[1], weight.scale), torch.float64)
    assert ((out_TN.double() - expected).abs() <= 2**-8 * expected.abs() + 2**-12 * magnitude).all()
    assert (out_TN.double() - expected).norm() <= 3e-3 * expected.norm()
    some = slice(num_tokens // 3, num_tokens // 3 + 70)
    assert torch.equal(fp8_linear_128(codes[some], scales_by_column(scale[some]), prepared), out_TN[some])


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [256, 4096])
@pytest.mark.parametrize("name", WEIGHTS)
def test_speed(name: str, num_tokens: int, timed) -> None:  # type: ignore[no-untyped-def]
    import kernel_peers

    outputs, inputs = WEIGHTS[name]
    count = 1 + (300 << 20) // (outputs * inputs) if num_tokens == 256 else 2
    weights = [plausible_weight(outputs, inputs, seed) for seed in range(count)]
    prepared = [prepare_fp8_weight_128(requantise_128(weight)) for weight in weights]
    x = [activations(num_tokens, inputs, seed) for seed in range(count)]
    quantised = [(codes, scales_by_column(scale)) for codes, scale in map(quantise_rows_128, x)]
    copies = [(x, weight.codes_NK, weight.scale) for x, weight in zip(x, weights)]
    timed(
        "fp8_linear_128 (lossy)",
        f"{name} N={outputs} K={inputs} T={num_tokens}",
        [lambda q=q, w=w: fp8_linear_128(*q, w) for q, w in zip(quantised, prepared)],
        flops=2.0 * num_tokens * outputs * inputs,
        dtype="fp8",
        moved_bytes=outputs * inputs + num_tokens * (inputs + 2 * outputs),
        peers=kernel_peers.linear(
            copies, ("cublas_bf16", "scaled_mm_tensor", "scaled_mm_128", "deep_gemm_fp8", "lmdeploy_fp8")
        ),
        runs=20,
        variant="lossy",
    )
