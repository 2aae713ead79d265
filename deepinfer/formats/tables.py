"""Decode E4M3 and packed E2M1 by look-up, one entry per byte: on a CPU several times faster than casts and shifts."""

from functools import cache

import torch
from torch import Tensor


def decode_e4m3(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of E4M3 codes (uint8 or float8_e4m3fn), same shape. Devices with a fast cast use it; the numbers are the same."""
    if codes.device.type != "cpu":
        return codes.view(torch.float8_e4m3fn).to(dtype)
    return _look_up(_e4m3(dtype, codes.device), codes.view(torch.uint8)).view(codes.shape)


def decode_e2m1_pairs(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """E2M1 values [..., 2n] of bytes uint8 [..., n]; the low nibble is the even column."""
    return _look_up(_e2m1_pairs(dtype, packed.device), packed).view(*packed.shape[:-1], packed.shape[-1] * 2)


def _look_up(table: Tensor, codes: Tensor) -> Tensor:
    return table.index_select(0, codes.flatten().int())


@cache
def _e4m3(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(device, dtype)


@cache
def _e2m1_pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    codes = [*magnitudes, *(-magnitude for magnitude in magnitudes)]
    return torch.tensor([(codes[byte & 15], codes[byte >> 4]) for byte in range(256)], dtype=dtype, device=device)
