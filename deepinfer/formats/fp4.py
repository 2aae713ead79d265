"""FP4 E2M1 in three uses, each with its own group and scale:

expert weights 32 columns, E8M0 · main keys 16, E4M3 · index queries and keys 32, E8M0.

A code is sign | two exponent bits | one mantissa bit; magnitudes 0, ½, 1, 1½, 2, 3, 4, 6. Two codes share a byte, the even
column in the low nibble. Rounding is to nearest, ties to the code with an even mantissa; beyond 6 it saturates.
"""

import torch
from torch import Tensor

from deepinfer.formats.scales import E4M3_MAX, decode_e8m0, grouped, power_of_two_scale
from deepinfer.formats.tables import decode_e2m1_pairs, decode_e4m3

E2M1_MAX = 6.0
INDEX_GROUP = 32
MAIN_GROUP = 16
EXPERT_GROUP = 32
POWER_FLOOR = 6.0 * 2.0**-126  # a scale is never below 2^-126, the smallest normal float32
MAIN_FLOOR = 6.0 * 2.0**-9  # makes the smallest main scale 2^-9, E4M3's smallest number


def quantise_fp4_experts(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes int8 [..., out, in / 2] and E8M0 bytes uint8 [..., out, in / 32] of weight [..., out, in]."""
    codes, scale = _quantise_power(weight, EXPERT_GROUP)
    return codes.view(torch.int8), scale


def dequantise_fp4_experts(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., out, in] from packed codes (int8 or uint8) [..., out, in / 2] and E8M0 bytes [..., out, in / 32]."""
    return _scaled(decode_e2m1_pairs(packed.view(torch.uint8), dtype), decode_e8m0(scale, dtype))


def fake_fp4_experts(weight: Tensor) -> Tensor:
    """weight [..., out, in] rounded to what a stored FP4 expert can hold. Keeps shape and dtype."""
    return _fake_power(weight, EXPERT_GROUP)


def quantise_index(x: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes uint8 [..., i / 2] and E8M0 bytes uint8 [..., i / 32] of index queries or keys x [..., i]."""
    return _quantise_power(x, INDEX_GROUP)


def dequantise_index(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., i] from packed codes uint8 [..., i / 2] and E8M0 bytes [..., i / 32]."""
    return _scaled(decode_e2m1_pairs(packed, dtype), decode_e8m0(scale, dtype))


def fake_index(x: Tensor) -> Tensor:
    """x [..., i] rounded to the index format. Keeps shape and dtype."""
    return _fake_power(x, INDEX_GROUP)


def quantise_main(x: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes uint8 [..., d / 2] and scales float8_e4m3fn [..., d / 16] of main keys x [..., d].

    The scale is E4M3(max(amax, 6·2⁻⁹) / 6), so it may round below amax / 6 and the largest element then saturates.
    """
    groups = grouped(x, MAIN_GROUP)
    scale = _main_scale(groups)
    return _packed(groups / decode_e4m3(scale, groups.dtype).unsqueeze(-1)), scale


def dequantise_main(packed: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., d] from packed codes uint8 [..., d / 2] and scales float8_e4m3fn [..., d / 16]."""
    return _scaled(decode_e2m1_pairs(packed, dtype), decode_e4m3(scale, dtype))


def fake_main(x: Tensor) -> Tensor:
    """x [..., d] rounded to the main key format. Keeps shape and dtype."""
    groups = grouped(x, MAIN_GROUP)
    scale = decode_e4m3(_main_scale(groups), groups.dtype).unsqueeze(-1)
    return (_rounded(groups / scale) * scale).flatten(-2).to(x.dtype)


def _quantise_power(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    groups = grouped(x, group)
    scale = _power_scale(groups)
    return _packed(groups / decode_e8m0(scale, groups.dtype).unsqueeze(-1)), scale


def _fake_power(x: Tensor, group: int) -> Tensor:
    groups = grouped(x, group)
    scale = decode_e8m0(_power_scale(groups), groups.dtype).unsqueeze(-1)
    return (_rounded(groups / scale) * scale).flatten(-2).to(x.dtype)


def _power_scale(groups: Tensor) -> Tensor:
    return power_of_two_scale(groups.abs().amax(-1).clamp(min=POWER_FLOOR), E2M1_MAX)


def _main_scale(groups: Tensor) -> Tensor:
    amax = groups.abs().amax(-1)
    scale = (amax.clamp(min=MAIN_FLOOR) / E2M1_MAX).clamp(max=E4M3_MAX)
    return torch.where(amax.isfinite(), scale, torch.nan).to(torch.float8_e4m3fn)


def _rounded(y: Tensor) -> Tensor:
    """Nearest E2M1 value. Each binade has its own step, and round() takes ties to the even multiple: the even mantissa."""
    mag = y.abs().clamp(max=E2M1_MAX)
    wide = torch.where(mag < 4.0, mag.round(), (mag * 0.5).round() * 2.0)
    return torch.where(mag < 2.0, (mag * 2.0).round() * 0.5, wide).copysign(y)


def _packed(y_groups: Tensor) -> Tensor:
    """E2M1 codes of scaled groups [..., n, group], two per byte: uint8 [..., n·group / 2].

    NaN becomes 6: the scale says that it is NaN.
    """
    mag = y_groups.abs().fmin(y_groups.new_full((), E2M1_MAX))
    wide = torch.where(mag < 4.0, mag.round() + 2.0, (mag * 0.5).round() + 4.0)
    codes = torch.where(mag < 2.0, (mag * 2.0).round(), wide).to(torch.uint8)
    codes = (codes | (y_groups.signbit().to(torch.uint8) << 3)).flatten(-2)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _scaled(values: Tensor, scale: Tensor) -> Tensor:
    return (values.unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1)).flatten(-2)
