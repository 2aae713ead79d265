"""Grouped output projection with FP8 weights (CUDA C++): against the twin in float64, bit for bit over batches, and timed.

The product is GPU-only; test_fp8_linear.py checks the weight's order on a CPU.
"""

import pytest
import torch
from deepinfer.kernels.cuda_fp8_linear import fp8_grouped_linear, prepare_fp8_weight, random_fp8_weight

from deepinfer.ops.fp8_linear import fp8_grouped_linear as twin

GROUPS, GROUP_OUTPUTS, INPUTS = 8, 1024, 4096
COPIES_BYTES = 300 << 20  # of weights, so that the second-level cache does not help


def inputs(num_tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = num_tokens, GROUPS, INPUTS
    return torch.randn(shape, generator=generator, device="cuda").bfloat16()


def test_the_twin_keeps_groups_apart() -> None:
    weight = random_fp8_weight(128, 64, 0, "cpu")
    x_TGK = torch.randn(3, 2, 64, dtype=torch.float64)
    expected = torch.einsum("tgk,gnk->tgn", x_TGK, weight.numbers(torch.float64).view(2, 64, 64)).flatten(1)
    torch.testing.assert_close(twin(x_TGK, weight), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 7, 64, 300])
def test_values(num_tokens: int) -> None:
    """In norm; and elementwise within bfloat16's rounding plus 2^-20 of the sum of magnitudes."""
    weight, x_TGK = (
        random_fp8_weight(GROUPS * GROUP_OUTPUTS, INPUTS, num_tokens),
        inputs(num_tokens, num_tokens).double(),
    )
    torch.full((num_tokens, GROUPS * GROUP_OUTPUTS), torch.nan, dtype=torch.bfloat16, device="cuda")
    out_TN = fp8_grouped_linear(x_TGK.bfloat16(), prepare_fp8_weight(weight)).double()
    numbers_GNK = weight.numbers(torch.float64).view(GROUPS, GROUP_OUTPUTS, INPUTS)
    expected = torch.einsum("tgk,gnk->tgn", x_TGK, numbers_GNK).flatten(1)
    magnitude = torch.einsum("tgk,gnk->tgn", x_TGK.abs(), numbers_GNK.abs()).flatten(1)
    assert (out_TN - expected).norm() <= 2.5e-3 * expected.norm()
    assert ((out_TN - expected).abs() <= 2**-8 * expected.abs() + 2**-20 * magnitude).all()


@pytest.mark.gpu
def test_a_row_knows_no_neighbours() -> None:
    prepared, x_TGK = prepare_fp8_weight(random_fp8_weight(GROUPS * GROUP_OUTPUTS, INPUTS, 0)), inputs(1500, 1)
    whole = fp8_grouped_linear(x_TGK, prepared)
    for size in (1, 2, 7, 64, 256, 700):
        first = 41 * size % 700
        assert torch.equal(fp8_grouped_linear(x_TGK[first : first + size], prepared), whole[first : first + size]), size
    x_TGK[1::3], x_TGK[2::3] = torch.nan, torch.inf
    assert torch.equal(fp8_grouped_linear(x_TGK, prepared)[::3], whole[::3])


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 64, 256, 4096])
def test_speed(num_tokens: int, timed) -> None:  # type: ignore[no-untyped-def]
    size, count = GROUPS * GROUP_OUTPUTS * INPUTS, 1
    if num_tokens <= 256:
        count += COPIES_BYTES // size
    weights = [random_fp8_weight(GROUPS * GROUP_OUTPUTS, INPUTS, seed) for seed in range(count)]
    prepared, x = (
        [prepare_fp8_weight(weight) for weight in weights],
        [inputs(num_tokens, seed) for seed in range(count)],
    )
    import kernel_peers

    weights_GNK = [weight.numbers(torch.bfloat16).view(GROUPS, GROUP_OUTPUTS, INPUTS) for weight in weights]
    # beside both variants, so that both run at the clock that peers leave
    peers = kernel_peers.output_projection(list(zip(x, weights_GNK)))
    for invariant in (True, False) if num_tokens > 64 else (True,):
        timed(
            "fp8_grouped_linear",
            f"attention out, {GROUPS} groups T={num_tokens}",
            [lambda x=x, w=w: fp8_grouped_linear(x, w, invariant) for x, w in zip(x, prepared)],  # noqa: B023
            flops=2.0 * num_tokens * size,
            moved_bytes=size * (1 + 1 / 1024) + 2 * num_tokens * GROUPS * (INPUTS + GROUP_OUTPUTS),
            peers=peers,
            runs=20,
            target="≤ 1.5 × the floor",
            variant="invariant" if invariant else "fast",
        )
