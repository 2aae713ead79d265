"""Packing and rounding of pairs in register tiles, for every bfloat16 number that can come: bit by bit as the formats say."""

import pytest
import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import reciprocal
from deepinfer.kernels.triton_formats import E2M1_UNIT, e4m3_values, pair_of_e2m1
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e2m1_grid, pair_on_e4m3_grid
from row_cases import DEVICES, bits
from torch import Tensor

BLOCK = 4096
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
TIES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))  # True: up


def e2m1_codes(quotient: Tensor) -> Tensor:
    """Codes of magnitudes, to nearest, ties to even."""
    size = quotient.abs()
    return sum(((size >= tie) if up else (size > tie)).long() for tie, up in TIES)


@triton.jit
def _packed(value_ptr, scale_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inverse = reciprocal(e4m3_values(tl.load(scale_ptr + place))) * E2M1_UNIT
    even, odd = tl.load(value_ptr + 2 * place), tl.load(value_ptr + 2 * place + 1)
    tl.store(out_ptr + place, pair_of_e2m1(even * inverse, odd * inverse))


@triton.jit
def _on_grid(pair_ptr, power_ptr, out_ptr, BLOCK: tl.constexpr, E2M1: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pair, power = tl.load(pair_ptr + place), tl.load(power_ptr + place)
    out = pair_on_e2m1_grid(pair, power) if E2M1 else pair_on_e4m3_grid(pair, power)
    tl.store(out_ptr + place, out)


@triton.jit
def _greatest(pair_ptr, out_ptr, GROUPS: tl.constexpr):
    group = tl.arange(0, GROUPS)
    tl.store(out_ptr + group, greatest_of_pairs(tl.load(pair_ptr + group[:, None] * 16 + tl.arange(0, 16)[None, :]), 1))


@pytest.mark.parametrize("device", DEVICES)
def test_quotients_by_every_scale(device: str) -> None:
    """Every mantissa over every E4M3 scale, from far below the first tie to beyond the greatest code, both signs."""
    code = torch.arange(128).clamp(1, 126).to(torch.uint8).view(-1, 1, 1, 1)
    scale = code.view(torch.float8_e4m3fn).double()
    mantissa = (1 + torch.arange(128, dtype=torch.float64) / 128).view(1, -1, 1)
    binade = torch.exp2(torch.arange(-4, 4, dtype=torch.float64))
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    value = torch.exp2(scale.log2().floor()) * (mantissa * binade).unsqueeze(-1) * sign
    wanted = e2m1_codes(value / scale) | (value < 0).long() << 3
    wanted = (wanted[..., 0] | wanted[..., 1] << 4).flatten()
    scale_N = code.expand(*value.shape[:3], 1).flatten().contiguous()
    found = torch.empty(len(scale_N), dtype=torch.uint8, device=device)
    _packed[(len(scale_N) // BLOCK,)](
        value.float().flatten().to(device), scale_N.to(device), found, BLOCK=BLOCK, num_warps=4
    )
    assert torch.equal(found.cpu().long(), wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("e2m1, power", [(True, 127), (True, 1), (True, 230), (False, 127), (False, 105), (False, 240)])
def test_every_number_on_the_grid(e2m1: bool, power: int, device: str) -> None:
    """All numbers up to the format's greatest times the power, both signs, zeros and subnormals too."""
    unit, greatest = 2.0 ** (power - 127), 6.0 if e2m1 else 448.0
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    x = torch.where(x.double().abs() <= greatest * unit, x, 0)
    quotient = x.double() / unit
    in_e4m3, in_e2m1 = quotient.float().to(torch.float8_e4m3fn), E2M1[e2m1_codes(quotient)].copysign(quotient)
    wanted = ((in_e2m1 if e2m1 else in_e4m3.double()) * unit).bfloat16()
    pairs = x.view(torch.int32).to(device)
    powers = torch.full_like(pairs, power)
    found = torch.empty_like(pairs)
    _on_grid[(len(pairs) // BLOCK,)](pairs, powers, found, BLOCK=BLOCK, E2M1=e2m1, num_warps=4)
    assert torch.equal(found.cpu().view(torch.int16), wanted.view(torch.int16))
    _on_grid[(len(pairs) // BLOCK,)](pairs, torch.full_like(pairs, 255), found, BLOCK=BLOCK, E2M1=e2m1, num_warps=4)
    assert found.view(torch.bfloat16).isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_greatest_of_a_group(device: str) -> None:
    """Wherever it stands; infinity and NaN are greater than numbers."""
    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[5, 3], x[6, 30], x[7, 0], x[8] = -torch.inf, torch.nan, 300, -0.0
    found = torch.empty(64, dtype=torch.int32, device=device)
    _greatest[(1,)](x.view(torch.int32).to(device), found, GROUPS=64, num_warps=2)
    wanted = (x.view(torch.int16).int() & 0x7FFF).amax(1) << 16
    assert torch.equal(bits(found.cpu()), bits(wanted.int()))
