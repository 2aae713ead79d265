"""E2M1 rows: main keys (E4M3 scale per 16 columns) and index keys (power-of-two scale per 32). float32 in, bit-equal."""

import numba
import numpy as np
import torch
from deepinfer.kernels.cpu_fp8_rows import POWERS, SUBNORMAL, SUBNORMAL_BITS, VALUES
from torch import Tensor

MAIN_GROUP, INDEX_GROUP = 16, 32
ZERO, HALF, TWO, FOUR, SIX = np.float32(0), np.float32(0.5), np.float32(2), np.float32(4), np.float32(6)
MAIN_FLOOR = np.float32(6 * 2.0**-9)
MAIN_LARGEST = np.float32(448)
INDEX_FLOOR = np.float32(6 * 2.0**-126)
FINITE = np.float32(3.4028235e38)
# 6 = 1.5 · 2^2; see cpu_fp8_rows
CARRY, EXPONENT = (1 << 23) - 1 - (1 << 22), 2
TO_NEAREST = np.float32(12582912)  # 1.5 · 2^23: adding and taking it away rounds to an integer, ties to even
NAN_E4M3, NAN_E8M0 = 0x7F, 255

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def largest(x: np.ndarray, floor: np.float32) -> np.float32:
    """max(|x|, floor), or NaN where x holds NaN or infinity."""
    amax, finite = floor, True
    for i in range(len(x)):
        magnitude = abs(x[i])
        if magnitude > amax:
            amax = magnitude
        finite &= magnitude <= FINITE
    return amax if finite else np.float32(np.nan)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def e2m1(y: np.float32) -> int:
    """The code of a scaled number; NaN becomes 6, its scale says that it is NaN."""
    magnitude = abs(y)
    if not magnitude < SIX:
        magnitude = SIX
    if magnitude < TWO:
        code = int((magnitude * TWO + TO_NEAREST) - TO_NEAREST)
    elif magnitude < FOUR:
        code = int((magnitude + TO_NEAREST) - TO_NEAREST) + 2
    else:
        code = int((magnitude * HALF + TO_NEAREST) - TO_NEAREST) + 4
    return code | 8 if y < ZERO or (y == ZERO and np.signbit(y)) else code


@numba.njit(cache=True, nogil=True, error_model="numpy")
def e4m3(y: np.float32, scratch: np.ndarray) -> int:
    """The code of 0 ≤ y ≤ 448."""
    if not y <= MAIN_LARGEST:
        return NAN_E4M3
    bits = scratch.view(np.int32)
    scratch[0] = y
    magnitude = bits[0]
    if magnitude < (121 << 23):
        scratch[0] = y + SUBNORMAL
        return bits[0] - SUBNORMAL_BITS
    return (magnitude + 0x7FFFF + ((magnitude >> 20) & 1) - (120 << 23)) >> 20


@numba.njit(cache=True, nogil=True, error_model="numpy")
def power_byte(amax: np.float32, scratch: np.ndarray) -> int:
    """E8M0 byte of the smallest power of two s with amax ≤ 6 s."""
    if not amax <= FINITE:
        return NAN_E8M0
    scratch[0] = amax
    return min(((scratch.view(np.int32)[0] + CARRY) >> 23) - EXPONENT, 254)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _pack(
    x: np.ndarray,
    group: int,
    main: bool,
    values: np.ndarray,
    powers: np.ndarray,
    store: np.ndarray,
    outer: np.ndarray,
    inner: np.ndarray,
) -> None:
    width, scratch = x.shape[1], np.empty(1, np.float32)
    for t in range(x.shape[0]):
        row = store[outer[t], inner[t]]
        for g in range(width // group):
            part = x[t, g * group : (g + 1) * group]
            if main:
                byte = e4m3(min(largest(part, MAIN_FLOOR) / SIX, MAIN_LARGEST), scratch)
                scale = values[byte]
            else:
                byte = power_byte(largest(part, INDEX_FLOOR), scratch)
                scale = powers[byte]
            row[width // 2 + g] = byte
            for i in range(0, group, 2):
                row[(g * group + i) // 2] = e2m1(part[i] / scale) | (e2m1(part[i + 1] / scale) << 4)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _fake_index(x: np.ndarray, magnitudes: np.ndarray, powers: np.ndarray, out: np.ndarray) -> None:
    scratch = np.empty(1, np.float32)
    for t in range(x.shape[0]):
        for first in range(0, x.shape[1], INDEX_GROUP):
            part = x[t, first : first + INDEX_GROUP]
            scale = powers[power_byte(largest(part, INDEX_FLOOR), scratch)]
            for i in range(INDEX_GROUP):
                out[t, first + i] = magnitudes[e2m1(part[i] / scale)] * scale


def quantise_index(x: Tensor) -> Tensor:
    """x [..., K] rounded to the index format; contiguous float32."""
    assert x.dtype == torch.float32 and x.is_contiguous() and x.shape[-1] % INDEX_GROUP == 0
    out = torch.empty(x.shape)
    width = x.shape[-1]
    _fake_index(x.view(-1, width).numpy(), MAGNITUDES, POWERS, out.view(-1, width).numpy())
    return out


def write_main(store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor) -> None:
    """x's rows packed to (outer, inner) of uint8 rows of K / 2 code bytes and K / 16 scales."""
    _write(store_ABR, outer_T, inner_T, x_TK, MAIN_GROUP)


def write_index(store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor) -> None:
    """x's rows packed to (outer, inner) of uint8 rows of K / 2 code bytes and K / 32 scales."""
    _write(store_ABR, outer_T, inner_T, x_TK, INDEX_GROUP)


def _write(store_ABR: Tensor, outer_T: Tensor, inner_T: Tensor, x_TK: Tensor, group: int) -> None:
    width = x_TK.shape[1]
    assert x_TK.dtype == torch.float32 and store_ABR.stride(2) == 1
    assert store_ABR.shape[2] == width // 2 + width // group
    places = outer_T.numpy(), inner_T.numpy()
    _pack(x_TK.contiguous().numpy(), group, group == MAIN_GROUP, VALUES, POWERS, store_ABR.numpy(), *places)
