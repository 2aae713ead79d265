"""Scales: E8M0, where one byte b stands for 2^(b - 127) and 255 is NaN; and the groups of a row that share one."""

import torch
from torch import Tensor

E4M3_MAX = 448.0
E8M0_BIAS = 127
E8M0_NAN = 255
_LARGEST_EXPONENT_BYTE = 254

# dtype → (integer type of the same width, mantissa bits, exponent bias)
_BITS = {torch.float32: (torch.int32, 23, 127), torch.float64: (torch.int64, 52, 1023)}


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays; everything narrower is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def grouped(x: Tensor, group: int) -> Tensor:
    """x [..., d] in its working dtype, cut off from autograd, as [..., d / group, group]."""
    width = x.shape[-1]
    if width % group:
        raise ValueError(f"rows of {width} numbers do not divide into quantisation groups of {group}")
    return x.detach().to(working_dtype(x.dtype)).unflatten(-1, (width // group, group))


def power_of_two_scale(amax: Tensor, largest: float) -> Tensor:
    """The smallest power of two s with amax <= largest · s, as E8M0 bytes (uint8, shape of amax).

    `amax` is float32 or float64, normal and positive: callers apply the floor. `largest` is the format's largest code value.
    Exact, unlike ceil(log2(…)), whose logarithm rounds near large powers: the exponent is read off the float's own bits.
    NaN or infinity gives the NaN byte; what even 2^127 cannot reach (float64 only) gets 2^127.
    """
    integer, mantissa_bits, bias = _BITS[amax.dtype]
    fraction, exponent = _split(largest, mantissa_bits)
    # adding this carries into the exponent exactly when amax's fraction exceeds that of `largest`
    carry = (1 << mantissa_bits) - 1 - fraction
    byte = ((amax.view(integer) + carry) >> mantissa_bits) + (E8M0_BIAS - bias - exponent)
    byte = byte.clamp(max=_LARGEST_EXPONENT_BYTE)
    return torch.where(amax.isfinite(), byte, E8M0_NAN).to(torch.uint8)


def decode_e8m0(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """E8M0 bytes (uint8 or float8_e8m0fnu) as numbers of `dtype`."""
    return scale.view(torch.float8_e8m0fnu).to(dtype)


def _split(value: float, mantissa_bits: int) -> tuple[int, int]:
    """Fraction bits and exponent of value = (1 + fraction / 2^mantissa_bits) · 2^exponent."""
    exponent = 0
    while value >= 2.0:
        value, exponent = value / 2.0, exponent + 1
    return int((value - 1.0) * (1 << mantissa_bits)), exponent
