"""Dense FP8 products on Hopper, CUDA C++: against the twin in float64, bit for bit over batches, and timed.

On a CPU: the weight's new order, read back as the kernel reads it, and the refusals. The product itself is GPU-only.
"""

from collections.abc import Callable

import pytest
import torch
from deepinfer.kernels import cuda_fp8_linear
from deepinfer.kernels.cuda_fp8_linear import (
    fp8_grouped_linear,
    fp8_linear,
    prepare_fp8_weight,
    random_fp8_weight,
    restore_fp8_weight,
)
from deepinfer.kernels.fp8_linear_shapes import SPLIT, WHOLE, Shape, choose, num_segments

from deepinfer.formats import fake_fp8_rows
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.fp8_linear import fp8_linear as twin

WEIGHTS = {  # outputs × inputs
    "q and kv down": (1792, 5120),
    "q up": (32768, 1280),
    "q up and index q": (36864, 1280),
    "attention out": (5120, 8192),
    "shared expert up": (4608, 5120),
    "shared expert down": (5120, 2304),
    "engram": (25600, 6144),
    "draft input": (5120, 15360),
}
SMALL = {
    "one segment": (256, 512),
    "two": (256, 1280),
    "eight segments": (1792, 5120),
    "five uneven segments": (5120, 8192),
    "four": (5120, 2304),
}
TIMED = [(name, tokens) for name in WEIGHTS for tokens in (1, 64, 4096) if name != "q up"]
TIMED += [("q up", tokens) for tokens in (1, 16, 64, 256, 4096)] + [("attention out", tokens) for tokens in (16, 256)]
NORM_ERROR = 2.5e-3  # of bfloat16 results: rounding alone gives 1.7e-3
COPIES_BYTES = 300 << 20  # of weights, so that the second-level cache does not help


def activations(num_tokens: int, num_inputs: int, seed: int, device: str = "cuda") -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return fake_fp8_rows(torch.randn(num_tokens, num_inputs, generator=generator, device=device).bfloat16())


def read_as_the_kernel(record: torch.Tensor, thread: int) -> dict[tuple[int, int], float]:
    """(row, column) → number, of the 32 codes of one thread in one record of 64 × 64."""
    scales = record[4096 + thread // 64 * 8 :][:8].view(torch.bfloat16).double()[::2].tolist()
    top, left, found = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2, {}
    for half in range(2):
        words = record[half * 2048 + thread * 16 :][:16].view(torch.int32).tolist()
        for i, word in enumerate(words):
            turned = (word & 0xFFFFFFFF) >> 4 | (word & 0xF) << 28
            upper, lower = word & 0x87F087F0, turned & 0x87808780 | word << 4 & 0x00700070
            for bits, below in ((upper, 0), (lower, 8)):
                pair = torch.tensor([bits & 0xFFFF, bits >> 16 & 0xFFFF]).to(torch.uint16).view(torch.bfloat16)
                for odd in range(2):
                    found[top + below, half * 32 + i * 8 + left + odd] = pair[odd].item() * scales[half]
    return found


def test_a_weight_is_laid_as_the_kernel_reads_it_and_back() -> None:
    weight = random_fp8_weight(256, 384, 0, "cpu")
    prepared = prepare_fp8_weight(weight)
    restored = restore_fp8_weight(prepared)
    assert torch.equal(restored.codes_NK.view(torch.uint8), weight.codes_NK.view(torch.uint8))
    assert torch.equal(restored.scale, weight.scale)
    numbers, seen = weight.numbers(torch.float64), 0
    for tile, step, half, thread in ((0, 0, 0, 0), (1, 5, 1, 127), (0, 3, 1, 37), (1, 0, 0, 70)):
        for (row, column), number in read_as_the_kernel(prepared.records[tile, step, half], thread).items():
            assert number == numbers[tile * 128 + half * 64 + row, step * 64 + column]
            seen += 1
    assert seen == 4 * 32


@pytest.mark.parametrize("byte", [2, 135, 255])
def test_scales_that_bfloat16_cannot_hold_are_refused(byte: int) -> None:
    weight = random_fp8_weight(128, 128, 0, "cpu")
    weight.scale[1, 2] = byte
    with pytest.raises(ValueError, match="cannot hold exactly"):
        prepare_fp8_weight(weight)


def test_a_weight_with_nan_is_refused() -> None:
    weight = random_fp8_weight(128, 128, 0, "cpu")
    weight.codes_NK.view(torch.uint8)[3, 4] = 0xFF
    with pytest.raises(ValueError, match="NaN"):
        prepare_fp8_weight(weight)


def test_shapes_and_bytes_of_another_layout_are_refused() -> None:
    weight = random_fp8_weight(128, 128, 0, "cpu")
    with pytest.raises(AssertionError, match=r"192 × 128.*multiples of 128.*Pad"):
        prepare_fp8_weight(random_fp8_weight(192, 128, 0, "cpu"))
    with pytest.raises(AssertionError, match=r"codes torch\.uint8"):
        prepare_fp8_weight(Fp8Weight(weight.codes_NK.view(torch.uint8), weight.scale))
    with pytest.raises(AssertionError, match=r"scales \(1, 1\).*give 4 × 4"):
        prepare_fp8_weight(Fp8Weight(weight.codes_NK, weight.scale[:1, :1]))


@pytest.mark.parametrize("product", [fp8_linear, fp8_grouped_linear])
def test_a_weight_that_is_not_prepared_is_refused(product: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(AssertionError, match=r"was given a Fp8Weight.*prepare_fp8_weight"):
        product(torch.zeros(1, 1, 128).bfloat16(), random_fp8_weight(128, 128, 0, "cpu"))


def test_the_order_of_addition_follows_from_the_weight_alone() -> None:
    assert [num_segments(*WEIGHTS[name]) for name in ("q and kv down", "q up", "attention out")] == [8, 1, 5]


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("processors", [66, 132])
def test_a_cut_fits_the_weight_for_any_number_of_rows(name: str, processors: int) -> None:
    outputs, inputs = WEIGHTS[name]
    segments = num_segments(outputs, inputs)
    for num_tokens in (1, 8, 9, 64, 65, 96, 97, 128, 129, 192, 256, 257, 512, 4096, 24576):
        shape = choose(num_tokens, outputs, inputs, segments, processors)
        assert (shape.sums == "CHAIN") == (segments == 1) and outputs % (64 * shape.warpgroups) == 0
        assert segments % shape.each == 0 and shape.cluster(segments) in (1, *range(2, 9))
        assert shape.sums != "SENT" or num_tokens <= shape.tokens


def test_groups_of_an_odd_number_of_tiles_take_blocks_of_one_tile() -> None:
    assert all(choose(tokens, 8 * 128, 4096, 8, 132, groups=8).warpgroups == 2 for tokens in (1, 96, 128, 300))


def test_the_twin_is_the_product_of_the_decoded_numbers() -> None:
    weight, x_TK = random_fp8_weight(64, 96, 1, "cpu"), activations(5, 96, 2, "cpu")
    expected = x_TK.double() @ weight.numbers(torch.float64).t()
    torch.testing.assert_close(twin(x_TK.double(), weight), expected)
    torch.testing.assert_close(twin(x_TK, weight).double(), expected, rtol=2**-8, atol=1e-4)


def check(out_TN: torch.Tensor, x_TK: torch.Tensor, weight: Fp8Weight) -> None:
    """In norm; and elementwise within bfloat16's rounding plus 2^-20 of the sum of magnitudes."""
    numbers_NK, x_TK = weight.numbers(torch.float64), x_TK.double()
    expected, magnitude = x_TK @ numbers_NK.t(), x_TK.abs() @ numbers_NK.abs().t()
    error = out_TN.double() - expected
    assert error.norm() <= NORM_ERROR * expected.norm()
    assert (error.abs() <= 2**-8 * expected.abs() + 2**-20 * magnitude).all()


def all_shapes(segments: int) -> list[Shape]:
    """Every variant that can take so many segments."""
    shapes = [timed.shape for timed in (WHOLE if segments == 1 else SPLIT)]
    return [shape for shape in shapes if segments % shape.each == 0 and (shape.each == 1 or segments > shape.each)]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("num_tokens", [1, 7, 64, 129, 700])
def test_values_and_equal_bits_of_every_cut(name: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_fp8_weight(*SMALL[name], num_tokens)
    prepared, x_TK = prepare_fp8_weight(weight), activations(num_tokens, SMALL[name][1], num_tokens)
    out_TN = fp8_linear(x_TK, prepared)
    check(out_TN, x_TK, weight)
    for shape in all_shapes(num_segments(*SMALL[name])):
        torch.full_like(out_TN, torch.nan)  # the allocator hands this memory to the next call
        monkeypatch.setattr(cuda_fp8_linear, "choose", lambda *_, shape=shape: shape)
        assert torch.equal(fp8_linear(x_TK, prepared), out_TN), shape


@pytest.mark.gpu
@pytest.mark.parametrize("name", SMALL)
def test_a_row_knows_no_neighbours(name: str) -> None:
    prepared = prepare_fp8_weight(random_fp8_weight(*SMALL[name], 3))
    x_TK = activations(2000, SMALL[name][1], 4)
    whole = fp8_linear(x_TK, prepared)
    for size in (1, 2, 7, 64, 256, 333, 1000):
        first = 41 * size % 900
        assert torch.equal(fp8_linear(x_TK[first : first + size], prepared), whole[first : first + size]), size
    x_TK[1::3], x_TK[2::3] = torch.nan, torch.inf
    assert torch.equal(fp8_linear(x_TK, prepared)[::3], whole[::3])
    assert torch.equal(fp8_linear(x_TK[:64], prepared)[::3], whole[:64:3])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "num_tokens"), TIMED)
def test_speed(name: str, num_tokens: int, timed) -> None:  # type: ignore[no-untyped-def]
    outputs, inputs = WEIGHTS[name]
    count = 1 + (COPIES_BYTES // (outputs * inputs) if num_tokens <= 256 else 0)
    weights = [random_fp8_weight(outputs, inputs, seed) for seed in range(count)]
    prepared = [prepare_fp8_weight(weight) for weight in weights]
    x = [activations(num_tokens, inputs, seed) for seed in range(count)]
    check(fp8_linear(x[0], prepared[0])[:64], x[0][:64], weights[0])
    target = "≥ 600 TF" if num_tokens == 4096 else "≥ 3.0 TB/s" if num_tokens <= 64 and outputs * inputs >= 40e6 else ""
    others = peers(x, weights)  # beside both variants, so that both run at the clock that peers leave
    for invariant in (True, False) if num_tokens > 64 else (True,):
        timed(
            "fp8_linear",
            f"{name} N={outputs} K={inputs} T={num_tokens}",
            [lambda x=x, w=w: fp8_linear(x, w, invariant) for x, w in zip(x, prepared)],  # noqa: B023
            flops=2.0 * num_tokens * outputs * inputs,
            moved_bytes=outputs * inputs * (1 + 1 / 1024) + 2 * num_tokens * (outputs + inputs),
            peers=others,
            runs=20,
            target=target,
            variant="invariant" if invariant else "fast",
            weight_bytes=outputs * inputs,
        )


def peers(x: list[torch.Tensor], weights: list[Fp8Weight]):  # type: ignore[no-untyped-def]
    import kernel_peers

    copies = [(x, weight.codes_NK, weight.scale) for x, weight in zip(x, weights)]
    return kernel_peers.linear(copies, ("cublas_bf16", "scaled_mm_tensor", "deep_gemm_fp8"))
