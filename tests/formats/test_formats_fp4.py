"""FP4 experts, main keys, index keys and the byte rows of the caches."""

import itertools
import math

import pytest
import torch

from deepinfer.formats import (
    dequantise_fp4_experts,
    dequantise_index,
    dequantise_main,
    fake_fp4_experts,
    fake_index,
    fake_main,
    fake_window,
    pack_index,
    pack_main,
    pack_window,
    quantise_fp4_experts,
    quantise_index,
    quantise_main,
    tables,
    unpack_index,
    unpack_main,
    unpack_window,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}
MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
ROWS = {
    "main": (pack_main, unpack_main, fake_main),
    "index": (pack_index, unpack_index, fake_index),
    "window": (pack_window, unpack_window, fake_window),
}
# (tie, the magnitude it goes to)
TIES = [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]


def assert_same_bits(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    assert torch.equal(got.view(BITS[got.dtype]), want.view(BITS[want.dtype]))


def wild_rows(dtype: torch.dtype, width: int = 256) -> torch.Tensor:
    """Rows of very different sizes, with zeros, negative zeros and subnormals among them."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(48, width, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-30, 30, 48, dtype=torch.float64).unsqueeze(1)
    x[3] = 0.0
    x[4] = -0.0
    x[5] = 1e-40
    x[6, ::3] = 0.0
    return x.to(dtype)


def nearest_e2m1(value: float) -> float:
    best = min(range(8), key=lambda code: (abs(MAGNITUDES[code] - abs(value)), code & 1))
    return math.copysign(MAGNITUDES[best], value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_expert_byte_decodes_low_nibble_first(dtype: torch.dtype) -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.int8)
    scale = torch.full((16, 1), 127, dtype=torch.uint8)
    got = dequantise_fp4_experts(packed, scale, dtype).view(256, 2)
    for byte in range(256):
        for column, code in enumerate((byte & 15, byte >> 4)):
            want = MAGNITUDES[code & 7] * (-1.0 if code & 8 else 1.0)
            assert got[byte, column].item() == want
            assert math.copysign(1.0, got[byte, column].item()) == (-1.0 if code & 8 else 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_survives_every_scale_byte(dtype: torch.dtype) -> None:
    values = torch.tensor(MAGNITUDES + [-v for v in MAGNITUDES], dtype=torch.float64).repeat(2)
    for exponent in (-120, -60, -1, 0, 1, 60, 120):
        row = torch.ldexp(values, torch.tensor(exponent)).to(dtype).unsqueeze(0)
        packed, scale = quantise_fp4_experts(row)
        assert scale.tolist() == [[exponent + 127]]
        assert_same_bits(dequantise_fp4_experts(packed, scale, dtype), row)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fake", [fake_fp4_experts, fake_index, fake_main])
def test_ties_go_where_the_reference_sends_them(dtype: torch.dtype, fake) -> None:
    x = torch.zeros(len(TIES), 2, 32, dtype=dtype)
    for row, (tie, _) in enumerate(TIES):
        x[row, :, 0::16] = 6.0  # holds every group's scale at 1
        x[row, 0, 1], x[row, 1, 1] = tie, -tie
    got = fake(x)
    assert got[:, 0, 1].tolist() == [want for _, want in TIES]
    assert got[:, 1, 1].tolist() == [-want for _, want in TIES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_beside_a_tie_the_nearer_value_wins(dtype: torch.dtype) -> None:
    x = torch.zeros(2 * len(TIES), 32, dtype=dtype)
    x[:, 0] = 6.0
    for i, (tie, _) in enumerate(TIES):
        point = torch.tensor(tie, dtype=dtype)
        x[2 * i, 1] = torch.nextafter(point, torch.tensor(0.0, dtype=dtype))
        x[2 * i + 1, 1] = torch.nextafter(point, torch.tensor(9.0, dtype=dtype))
    want = [m for low, high in itertools.pairwise(MAGNITUDES) for m in (low, high)]
    assert fake_fp4_experts(x)[:, 1].tolist() == want


@pytest.mark.parametrize("dtype", DTYPES)
def test_index_rows_match_brute_force(dtype: torch.dtype) -> None:
    x = wild_rows(dtype, 64)
    got = fake_index(x)
    for row in range(len(x)):
        for start in (0, 32):
            group = x[row, start : start + 32].double().tolist()
            bound = max(*(abs(v) for v in group), 6.0 * 2.0**-126)
            exponent = math.ceil(math.log2(bound / 6.0))
            want = [nearest_e2m1(v / 2.0**exponent) * 2.0**exponent for v in group]
            assert got[row, start : start + 32].tolist() == want


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_main_rows_follow_the_rounded_scale(dtype: torch.dtype) -> None:
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(6), dtype=torch.float64).to(dtype) * 3
    packed, scale = quantise_main(x)
    assert packed.shape == (40, 32) and scale.shape == (40, 4)
    groups = x.unflatten(-1, (4, 16))
    want_scale = (groups.abs().amax(-1).clamp(min=6 * 2.0**-9) / 6).float().to(torch.float8_e4m3fn)
    assert torch.equal(scale.view(torch.uint8), want_scale.view(torch.uint8))
    got = dequantise_main(packed, scale, dtype).unflatten(-1, (4, 16))
    for row, group in ((r, g) for r in range(40) for g in range(4)):
        step = want_scale[row, group].to(dtype)
        want = [nearest_e2m1((value / step).item()) * step.item() for value in groups[row, group]]
        assert got[row, group].tolist() == want
    # some scales did round down, so that the largest element saturated, and some up
    ratio = (groups.abs().amax(-1) / want_scale.to(dtype)).flatten()
    assert (ratio > 6).any() and (ratio < 6).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_main_scale_floor_and_ceiling(dtype: torch.dtype) -> None:
    packed, scale = quantise_main(torch.zeros(1, 16, dtype=dtype))
    assert scale.view(torch.uint8).tolist() == [[1]] and not packed.any()  # code 1 is 2^-9
    huge = torch.full((1, 16), 1e30, dtype=dtype)
    assert quantise_main(huge)[1].float().tolist() == [[448.0]]
    assert fake_main(-huge).tolist() == [[-6.0 * 448.0] * 16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_power_scaled_floor(dtype: torch.dtype) -> None:
    packed, scale = quantise_index(torch.zeros(1, 32, dtype=dtype))
    assert scale.tolist() == [[1]] and not packed.any()
    edge = torch.full((1, 32), 6.0 * 2.0**-126, dtype=dtype)
    assert_same_bits(fake_index(edge), edge)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_unpacking_a_packed_row_is_the_fake_quantiser(kind: str, dtype: torch.dtype) -> None:
    pack, unpack, fake = ROWS[kind]
    x = wild_rows(dtype)
    rows = pack(x)
    assert rows.dtype == torch.uint8
    assert rows.shape[-1] == {"main": 128 + 16, "index": 128 + 8, "window": 256 + 8}[kind]
    assert_same_bits(unpack(rows, dtype), fake(x))
    assert torch.equal(pack(x.unflatten(0, (6, 8))), rows.unflatten(0, (6, 8)))
    assert_same_bits(unpack(rows.unflatten(0, (6, 8)), dtype), fake(x).unflatten(0, (6, 8)))


def test_released_entry_sizes() -> None:
    assert pack_main(torch.zeros(1, 512)).shape == (1, 288)
    assert pack_index(torch.zeros(1, 128)).shape == (1, 68)
    assert pack_window(torch.zeros(1, 512)).shape == (1, 528)


def test_codes_come_first_then_scales() -> None:
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1], x[0, 16] = 6.0, -1.0, 12.0
    assert pack_main(x)[0].tolist() == [0xA7, *[0] * 7, 0x07, *[0] * 7, 0x38, 0x40]  # E4M3 1.0 and 2.0
    assert pack_index(x)[0].tolist() == [0x95, *[0] * 7, 0x07, *[0] * 7, 128]
    window = pack_window(x)[0].tolist()
    assert len(window) == 33 and window[32] == 127 - 5  # 12 / 448 lies in (2^-6, 2^-5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_all_rows_of_one_repeated_byte_decode_as_their_parts_say(kind: str, dtype: torch.dtype) -> None:
    unpack = ROWS[kind][1]
    width = {"main": 9, "index": 17, "window": 33}[kind]
    rows = torch.arange(256, dtype=torch.uint8).unsqueeze(1).expand(256, width).contiguous()
    got = unpack(rows, dtype)
    e4m3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = e4m3.double() if kind == "main" else torch.ldexp(torch.ones(256).double(), torch.arange(256) - 127)
    for byte in range(256):
        if (kind != "main" and byte == 255) or (kind == "main" and byte in (0x7F, 0xFF)):
            assert got[byte].isnan().all()
        elif kind == "window":
            want = (e4m3[byte].double() * scale[byte]).to(dtype)
            assert got[byte].isnan().all() if want.isnan() else (got[byte] == want).all()
        else:
            pair = [MAGNITUDES[c & 7] * (-1.0 if c & 8 else 1.0) for c in (byte & 15, byte >> 4)]
            want = (torch.tensor(pair).double() * scale[byte]).to(dtype)
            assert torch.equal(got[byte, :2], want) and torch.equal(got[byte, -2:], want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_freed_rows_filled_with_ones_are_nan(kind: str, dtype: torch.dtype) -> None:
    width = {"main": 144, "index": 136, "window": 264}[kind]
    got = ROWS[kind][1](torch.full((3, width), 0xFF, dtype=torch.uint8), dtype)
    assert got.shape == (3, 256) and got.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ROWS)
def test_nan_survives_packing_and_stays_in_its_group(kind: str, bad: float, dtype: torch.dtype) -> None:
    pack, unpack, fake = ROWS[kind]
    x = torch.full((2, 64), 6.0, dtype=dtype)
    x[0, 5] = bad
    got, want = unpack(pack(x), dtype), fake(x)
    group = 16 if kind == "main" else 32
    assert got[0, :group].isnan().all() and not got[0, group:].isnan().any() and not got[1].isnan().any()
    assert torch.equal(got.isnan(), want.isnan())
    assert unpack(pack(torch.full((1, 64), math.nan, dtype=dtype)), dtype).isnan().all()


@pytest.mark.parametrize("kind", ROWS)
def test_a_packed_row_does_not_depend_on_its_batch(kind: str) -> None:
    pack, unpack, _ = ROWS[kind]
    x = wild_rows(torch.float32)[:41]
    whole = pack(x)
    for width in range(1, 41):
        assert torch.equal(pack(x[:width]), whole[:width]) and torch.equal(
            pack(x[width : width + 1]), whole[width : width + 1]
        )
    assert pack(x[:0]).shape == (0, whole.shape[1]) and unpack(whole[:0]).shape == (0, 256)


@pytest.mark.parametrize("fake", [fake_fp4_experts, fake_index])
def test_rounding_twice_changes_nothing(fake) -> None:
    x = wild_rows(torch.float32)
    assert_same_bits(fake(fake(x)), fake(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_expert_codes_decode_to_the_fake_quantised_weight(dtype: torch.dtype) -> None:
    weight = wild_rows(dtype)
    packed, scale = quantise_fp4_experts(weight)
    assert packed.dtype == torch.int8 and packed.shape == (48, 128) and scale.shape == (48, 8)
    assert_same_bits(dequantise_fp4_experts(packed, scale, dtype), fake_fp4_experts(weight))
    assert_same_bits(dequantise_index(packed.view(torch.uint8), scale, dtype), fake_fp4_experts(weight))


def test_rows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"40 numbers .* groups of 16"):
        pack_main(torch.zeros(1, 40))
    with pytest.raises(ValueError, match="10 bytes"):
        unpack_main(torch.zeros(1, 10, dtype=torch.uint8))


def test_results_are_cut_off_from_autograd() -> None:
    x = torch.randn(2, 64, requires_grad=True)
    assert not any(fake(x).requires_grad for fake in (fake_main, fake_index, fake_window, fake_fp4_experts))


def test_a_table_first_used_in_inference_mode_serves_autograd_too() -> None:
    tables._e2m1_pairs.cache_clear()
    tables._e4m3.cache_clear()
    rows = pack_main(torch.full((1, 32), 6.0))
    with torch.inference_mode():
        unpack_main(rows)
    weight = torch.ones(1, 32, requires_grad=True)
    (unpack_main(rows) * weight).sum().backward()
    assert weight.grad is not None and (weight.grad == 6).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ROWS)
def test_a_gpu_packs_the_same_bytes(kind: str, dtype: torch.dtype) -> None:
    pack, unpack, fake = ROWS[kind]
    x = wild_rows(dtype)
    rows = pack(x)
    assert torch.equal(pack(x.cuda()).cpu(), rows)
    assert_same_bits(unpack(rows.cuda(), dtype).cpu(), unpack(rows, dtype))
    assert_same_bits(fake(x.cuda()).cpu(), fake(x))
