"""FP8 rows and blocks, and the power-of-two scales under them, against brute force and published known answers."""

import itertools
import math

import pytest
import torch

from deepinfer.formats import (
    dequantise_fp8_blocks,
    dequantise_fp8_rows,
    fake_fp8_blocks,
    fake_fp8_rows,
    quantise_fp8_blocks,
    quantise_fp8_rows,
)
from deepinfer.formats.scales import decode_e8m0, power_of_two_scale

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}


def assert_same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.view(BITS[got.dtype]), want.view(BITS[want.dtype]))


def e4m3_value(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, (code >> 3) & 0xF, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10))


def nearest_e4m3(value: float) -> float:
    """Brute force over all non-negative codes; of two equally near ones the even code."""
    best = min(range(0x7F), key=lambda code: (abs(e4m3_value(code) - abs(value)), code & 1))
    return math.copysign(e4m3_value(best), value)


def brute_scale_exponent(amax: float, largest: float) -> int:
    exponent = -200
    while math.ldexp(largest, exponent) < amax:
        exponent += 1
    return exponent


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e8m0_byte_decodes(dtype: torch.dtype) -> None:
    decoded = decode_e8m0(torch.arange(256, dtype=torch.uint8), dtype)
    assert decoded.dtype == dtype
    assert decoded[:255].tolist() == [math.ldexp(1.0, byte - 127) for byte in range(255)]
    assert decoded[255].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_e4m3_code_decodes_under_every_scale_that_keeps_it_normal(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for byte in (20, 105, 127, 128, 200, 240):
        got = dequantise_fp8_rows(codes, torch.full((8,), byte, dtype=torch.uint8), dtype)
        for code, value in enumerate(got.tolist()):
            want = e4m3_value(code) * math.ldexp(1.0, byte - 127)
            assert value == want or (math.isnan(value) and code in (0x7F, 0xFF))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("largest", [448.0, 6.0])
def test_scale_exponent_is_exact_at_and_beside_every_power(dtype: torch.dtype, largest: float) -> None:
    exponents = torch.arange(-110, 118)
    exact = torch.ldexp(torch.full(exponents.shape, largest, dtype=dtype), exponents)
    above = torch.nextafter(exact, torch.tensor(math.inf, dtype=dtype))
    below = torch.nextafter(exact, torch.tensor(0.0, dtype=dtype))
    assert torch.equal(power_of_two_scale(exact, largest).long() - 127, exponents)
    assert torch.equal(power_of_two_scale(above, largest).long() - 127, exponents + 1)
    assert torch.equal(power_of_two_scale(below, largest).long() - 127, exponents)


def test_a_rounding_logarithm_would_fail_where_ours_is_exact() -> None:
    amax = torch.nextafter(torch.tensor([448.0 * 2**60]), torch.tensor(math.inf))
    assert torch.ceil(torch.log2(amax / 448.0)).item() == 60  # the logarithm has rounded the excess away
    assert power_of_two_scale(amax, 448.0).item() - 127 == 61


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale_exponent_of_random_magnitudes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    amax = torch.exp(torch.empty(400, dtype=torch.float64).uniform_(-60, 60, generator=generator)).to(dtype)
    for largest in (448.0, 6.0):
        got = (power_of_two_scale(amax, largest).long() - 127).tolist()
        assert got == [brute_scale_exponent(value, largest) for value in amax.tolist()]


def test_scale_of_nan_infinity_and_the_unreachable() -> None:
    assert power_of_two_scale(torch.tensor([math.nan, math.inf]), 6.0).tolist() == [255, 255]
    assert power_of_two_scale(torch.tensor([1e300], dtype=torch.float64), 6.0).tolist() == [254]


def test_published_known_answer_of_a_released_weight() -> None:
    codes = torch.tensor([0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5], dtype=torch.uint8).view(torch.float8_e4m3fn)
    got = dequantise_fp8_blocks(codes.unsqueeze(0), torch.tensor([[0x73]], dtype=torch.uint8))
    want = [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125, -0.0126953125]
    assert got.tolist() == [want]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_round_every_element_to_the_nearest_code(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    x = (torch.randn(6, 64, generator=generator) * torch.tensor([1e-5, 1e-3, 1.0, 50.0, 3e4, 1e20]).unsqueeze(1)).to(
        dtype
    )
    got = fake_fp8_rows(x)
    for row in range(6):
        for start in (0, 32):
            group = x[row, start : start + 32].double()
            scale = math.ldexp(1.0, brute_scale_exponent(max(group.abs().max().item(), 1e-4), 448.0))
            want = [nearest_e4m3(value / scale) * scale for value in group.tolist()]
            assert got[row, start : start + 32].tolist() == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_of_e4m3_go_to_the_even_code(dtype: torch.dtype) -> None:
    values = [e4m3_value(code) for code in range(0x7F)]
    ties = [(low + high) / 2 for low, high in itertools.pairwise(values)]
    x = torch.zeros(2 * len(ties), 32, dtype=dtype)
    x[:, 0] = 448.0  # holds the scale at 1
    x[:, 1] = torch.tensor(ties + [-tie for tie in ties], dtype=dtype)
    codes = quantise_fp8_rows(x)[0].view(torch.uint8)[:, 1].tolist()
    assert codes == [low + (low & 1) for low in range(0x7E)] + [0x80 | (low + (low & 1)) for low in range(0x7E)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_rows_small_rows_and_the_floor(dtype: torch.dtype) -> None:
    codes, scale = quantise_fp8_rows(torch.zeros(2, 64, dtype=dtype))
    assert not codes.view(torch.uint8).any() and scale.tolist() == [[105, 105], [105, 105]]  # 2^-22 >= 1e-4 / 448
    tiny = torch.full((1, 32), 1e-39, dtype=dtype)  # subnormal in float32
    assert_same_bits(fake_fp8_rows(tiny), torch.zeros(1, 32, dtype=dtype))
    assert fake_fp8_rows(torch.full((1, 32), -0.0, dtype=dtype)).signbit().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_group_with_nan_or_infinity_is_nan_and_its_neighbour_is_not(dtype: torch.dtype, bad: float) -> None:
    x = torch.ones(1, 64, dtype=dtype)
    x[0, 40] = bad
    got = fake_fp8_rows(x)
    assert got[0, 32:].isnan().all() and (got[0, :32] == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_result_does_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    x = torch.randn(41, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = fake_fp8_rows(x)
    for width in range(1, 41):
        assert_same_bits(fake_fp8_rows(x[width : width + 1]), whole[width : width + 1])
        assert_same_bits(fake_fp8_rows(x[:width]), whole[:width])


def test_group_size_is_a_parameter_and_must_divide() -> None:
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    codes, scale = quantise_fp8_rows(x, group=128)
    assert scale.shape == (3, 1)
    assert_same_bits(dequantise_fp8_rows(codes, scale), fake_fp8_rows(x, group=128))
    with pytest.raises(ValueError, match=r"50 numbers .* groups of 32"):
        quantise_fp8_rows(torch.zeros(2, 50))


def test_no_rows_are_fine() -> None:
    assert fake_fp8_rows(torch.zeros(0, 64)).shape == (0, 64)
    assert fake_fp8_rows(torch.zeros(2, 0, 64)).shape == (2, 0, 64)


def test_results_are_cut_off_from_autograd() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    assert not fake_fp8_rows(x).requires_grad and not fake_fp8_blocks(x).requires_grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(32, 32), (64, 96), (33, 65), (5, 7), (1, 128), (100, 1)])
def test_blocks_match_brute_force_over_blocks(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    rows, columns = shape
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    weight = (weight * torch.exp(torch.arange(rows) % 64 / 9.0).unsqueeze(1)).to(dtype)
    codes, scale = quantise_fp8_blocks(weight)
    assert codes.shape == shape and codes.dtype == torch.float8_e4m3fn
    assert scale.shape == (-(-rows // 32), -(-columns // 32)) and scale.dtype == torch.uint8
    got = dequantise_fp8_blocks(codes, scale, dtype)
    for top in range(0, rows, 32):
        for left in range(0, columns, 32):
            block = weight[top : top + 32, left : left + 32].double()
            exponent = brute_scale_exponent(max(block.abs().max().item(), 1e-4), 448.0)
            assert scale[top // 32, left // 32].item() - 127 == exponent
            step = math.ldexp(1.0, exponent)
            want = (block / step).clamp(-448, 448).float().to(torch.float8_e4m3fn).double() * step
            assert torch.equal(got[top : top + 32, left : left + 32].double(), want)
    assert_same_bits(fake_fp8_blocks(weight), got)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_twice_changes_nothing(dtype: torch.dtype) -> None:
    weight = torch.randn(70, 100, generator=torch.Generator().manual_seed(2)).to(dtype)
    once = fake_fp8_blocks(weight)
    assert_same_bits(fake_fp8_blocks(once), once)
    rows = fake_fp8_rows(weight[:, :96])
    assert_same_bits(fake_fp8_rows(rows), rows)


def test_stacked_weights_are_rounded_one_by_one() -> None:
    weights = torch.randn(3, 40, 50, generator=torch.Generator().manual_seed(4))
    whole = fake_fp8_blocks(weights)
    for i in range(3):
        assert_same_bits(fake_fp8_blocks(weights[i]), whole[i])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_rounds_as_the_cpu_does(dtype: torch.dtype) -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    x = (x * torch.logspace(-12, 12, 64, dtype=torch.float64).unsqueeze(1)).to(dtype)
    assert_same_bits(fake_fp8_rows(x.cuda()).cpu(), fake_fp8_rows(x))
    assert_same_bits(fake_fp8_blocks(x.cuda()).cpu(), fake_fp8_blocks(x))
