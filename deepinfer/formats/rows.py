"""Byte rows of the packed caches: the codes of one entry, then its scales.

main    d/2 bytes of FP4 codes, d/16 E4M3 scales        index   i/2 bytes of FP4 codes, i/32 E8M0 scales
window  d bytes of E4M3 codes,  d/32 E8M0 scales

A row of 0xFF bytes decodes to NaN in all three, so freed memory filled with it cannot be read unnoticed.
unpack(pack(x)) equals fake(x) bit for bit.
"""

import torch
from torch import Tensor

from deepinfer.formats.fp4 import (
    INDEX_GROUP,
    MAIN_GROUP,
    dequantise_index,
    dequantise_main,
    quantise_index,
    quantise_main,
)
from deepinfer.formats.fp8 import GROUP, dequantise_fp8_rows, fake_fp8_rows, quantise_fp8_rows


def pack_main(x: Tensor) -> Tensor:
    """Main keys [..., d] as uint8 [..., d/2 + d/16]."""
    codes, scale = quantise_main(x)
    return torch.cat((codes, scale.view(torch.uint8)), dim=-1)


def unpack_main(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Main keys [..., d] of `dtype` from uint8 [..., d/2 + d/16]."""
    codes, scale = _split(rows, codes_per_scale=MAIN_GROUP // 2)
    return dequantise_main(codes, scale.view(torch.float8_e4m3fn), dtype)


def pack_index(x: Tensor) -> Tensor:
    """Index keys [..., i] as uint8 [..., i/2 + i/32]."""
    return torch.cat(quantise_index(x), dim=-1)


def unpack_index(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Index keys [..., i] of `dtype` from uint8 [..., i/2 + i/32]."""
    return dequantise_index(*_split(rows, codes_per_scale=INDEX_GROUP // 2), dtype)


def pack_window(x: Tensor) -> Tensor:
    """Window keys [..., d] as uint8 [..., d + d/32]."""
    codes, scale = quantise_fp8_rows(x)
    return torch.cat((codes.view(torch.uint8), scale), dim=-1)


def unpack_window(rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Window keys [..., d] of `dtype` from uint8 [..., d + d/32]."""
    codes, scale = _split(rows, codes_per_scale=GROUP)
    return dequantise_fp8_rows(codes.view(torch.float8_e4m3fn), scale, dtype)


def fake_window(x: Tensor) -> Tensor:
    """x [..., d] rounded to the window format. Keeps shape and dtype."""
    return fake_fp8_rows(x)


def _split(rows: Tensor, codes_per_scale: int) -> tuple[Tensor, Tensor]:
    """Code bytes and scale bytes of a row; one scale byte follows every `codes_per_scale` code bytes in number."""
    num_scales, rest = divmod(rows.shape[-1], codes_per_scale + 1)
    if rest:
        raise ValueError(
            f"a row of {rows.shape[-1]} bytes is not a whole number of groups of {codes_per_scale + 1} bytes"
        )
    border = num_scales * codes_per_scale
    return rows[..., :border], rows[..., border:]
