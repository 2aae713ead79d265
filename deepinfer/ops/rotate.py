"""Rotary embedding of the last dims, interleaved pairs."""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import working


def rotate(x: Tensor, rope_T2F: Tensor, inverse: bool = False) -> Tensor:
    """x [T, K] or [T, H, K] with its last 2F dims turned by rope [T, 2, F] (cosines, sines); `inverse` turns back."""
    frequencies = rope_T2F.shape[-1]
    cos, sin = rope_T2F.unbind(1)
    if x.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if inverse:
        sin = -sin
    wide = working(x)
    still, pairs = wide[..., : -2 * frequencies], wide[..., -2 * frequencies :].unflatten(-1, (frequencies, 2))
    even, odd = pairs.unbind(-1)
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
    return torch.cat((still, turned), -1).to(x.dtype)
