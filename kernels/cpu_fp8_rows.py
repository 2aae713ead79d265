"""E4M3 rows with a power-of-two scale per 32 columns: rounded in place, or packed into cache rows. float32 in, bit-equal."""

import numba
import numpy as np
import torch
from torch import Tensor

GROUP = 32
FLOOR = np.float32(1e-4)
LARGEST = np.float32(448)
FINITE = np.float32(3.4028235e38)
# 448 = 1.75 · 2^8: adding this to a float's bits carries into the exponent when its fraction exceeds that of 448
CARRY, EXPONENT = (1 << 23) - 1 - (3 << 21), 8
SUBNORMAL = np.float32(16384)  # its last place is 2^-9, E4M3's smallest step
SUBNORMAL_BITS = 0x46800000
NAN_CODE, NAN_SCALE = 0x7F, 255

VALUES = (torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)).numpy()
POWERS = (torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).to(torch.float32)).numpy()


@numba.njit(cache=True, nogil=True, error_model="numpy")
def encode_group(x: np.ndarray, codes: np.ndarray, numbers: np.ndarray, shifted: np.ndarray, powers: np.ndarray) -> int:
    """E4M3 codes of one group; returns its scale byte. `numbers` and `shifted` are float32 scratch of a group's length."""
    amax, finite = FLOOR, True
    for i in range(GROUP):
        magnitude = abs(x[i])
        if magnitude > amax:
            amax = magnitude
        finite &= magnitude <= FINITE
    if not finite:
        for i in range(GROUP):
            codes[i] = NAN_CODE
        return NAN_SCALE
    numbers[0] = amax
    bits = numbers.view(np.int32)
    byte = min(((bits[0] + CARRY) >> 23) - EXPONENT, 254)
    scale = powers[byte]
    for i in range(GROUP):
        y = min(max(x[i] / scale, -LARGEST), LARGEST)
        numbers[i] = y
        shifted[i] = abs(y) + SUBNORMAL
    small = shifted.view(np.int32)
    for i in range(GROUP):
        magnitude = bits[i] & 0x7FFFFFFF
        normal = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1) - (120 << 23)) >> 20
        code = small[i] - SUBNORMAL_BITS if magnitude < (121 << 23) else normal
        codes[i] = code | ((bits[i] >> 24) & 0x80)
    return byte


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _fake(x: np.ndarray, values: np.ndarray, powers: np.ndarray, out: np.ndarray) -> None:
    codes, numbers, shifted = np.empty(GROUP, np.uint8), np.empty(GROUP, np.float32), np.empty(GROUP, np.float32)
    for t in range(x.shape[0]):
        for first in range(0, x.shape[1], GROUP):
            scale = powers[encode_group(x[t, first : first + GROUP], codes, numbers, shifted, powers)]
            for i in range(GROUP):
                out[t, first + i] = values[codes[i]] * scale


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _pack(x: np.ndarray, powers: np.ndarray, store: np.ndarray, outer: np.ndarray, inner: np.ndarray) -> None:
    numbers, shifted = np.empty(GROUP, np.float32), np.empty(GROUP, np.float32)
    width = x.shape[1]
    for t in range(x.shape[0]):
        row = store[outer[t], inner[t]]
        for group in range(width // GROUP):
            first = group * GROUP
            row[width + group] = encode_group(
                x[t, first : first + GROUP], row[first : first + GROUP], numbers, shifted, powers
            )


def quantise_activation(x_TK: Tensor) -> Tensor:
    """x rounded to E4M3 [T, K]; float32, K a multiple of 32."""
    assert x_TK.dtype == torch.float32 and x_TK.ndim == 2 and x_TK.shape[1] % GROUP == 0
    out_TK = torch.empty(x_TK.shape)
    _fake(x_TK.contiguous().numpy(), VALUES, POWERS, out_TK.numpy())
    return out_TK


def write_window(store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor) -> None:
    """x's rows packed to (outer, inner) of uint8 rows of K codes and K / 32 scales."""
    assert x_TK.dtype == torch.float32 and store_ABR.stride(2) == 1
    assert store_ABR.shape[2] == x_TK.shape[1] + x_TK.shape[1] // GROUP
    _pack(x_TK.contiguous().numpy(), POWERS, store_ABR.numpy(), outer_T.numpy(), inner_T.numpy())
