"""FP8 E4M3 with power-of-two scales: per row and 32 columns (activations, window keys), or per 32 × 32 block (weights)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.formats.scales import E4M3_MAX, decode_e8m0, grouped, power_of_two_scale, working_dtype
from deepinfer.formats.tables import decode_e4m3

FP8_FLOOR = 1e-4  # smallest magnitude a scale is made for; keeps all-zero groups away from 0 / 0
GROUP = 32
BLOCK = 32


def quantise_fp8_rows(x: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn [..., d] and E8M0 bytes uint8 [..., d / group] of x [..., d]; `group` must divide d."""
    groups = grouped(x, group)
    scale = power_of_two_scale(groups.abs().amax(-1).clamp(min=FP8_FLOOR), E4M3_MAX)
    return _encode(groups, decode_e8m0(scale, groups.dtype).unsqueeze(-1)).flatten(-2), scale


def dequantise_fp8_rows(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., d] from codes [..., d] and E8M0 bytes [..., d / group]."""
    groups = decode_e4m3(codes, dtype).unflatten(-1, (scale.shape[-1], -1))
    return (groups * decode_e8m0(scale, dtype).unsqueeze(-1)).flatten(-2)


def fake_fp8_rows(x: Tensor, group: int = GROUP) -> Tensor:
    """x [..., d] rounded to what FP8 rows can hold: the activation and window-key quantiser. Keeps shape and dtype."""
    codes, scale = quantise_fp8_rows(x, group)
    return dequantise_fp8_rows(codes, scale, x.dtype)


def quantise_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn [..., out, in] and E8M0 bytes uint8 [..., ⌈out/32⌉, ⌈in/32⌉] of weight [..., out, in].

    Blocks at ragged edges are scaled by the elements they have.
    """
    weight = weight.detach().to(working_dtype(weight.dtype))
    rows, columns = weight.shape[-2:]
    padded = F.pad(weight, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    scale = power_of_two_scale(blocks.abs().amax((-1, -3)).clamp(min=FP8_FLOOR), E4M3_MAX)
    return _encode(weight, _spread(decode_e8m0(scale, weight.dtype), rows, columns)), scale


def dequantise_fp8_blocks(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers [..., out, in] from codes [..., out, in] and E8M0 bytes [..., ⌈out/32⌉, ⌈in/32⌉]."""
    rows, columns = codes.shape[-2:]
    return decode_e4m3(codes, dtype) * _spread(decode_e8m0(scale, dtype), rows, columns)


def fake_fp8_blocks(weight: Tensor) -> Tensor:
    """weight [..., out, in] rounded to what a stored FP8 weight can hold. Keeps shape and dtype."""
    return dequantise_fp8_blocks(*quantise_fp8_blocks(weight), weight.dtype)


def _encode(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def _spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """One number per element [..., rows, columns] from one per block."""
    return scale.repeat_interleave(BLOCK, -2)[..., :rows, :].repeat_interleave(BLOCK, -1)[..., :columns]
