"""Rotary position tables: interleaved pairs, with or without YaRN.

Legend: P positions · F = rope dims / 2 frequencies.
"""

import math

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config

BLOCK_POSITIONS = 1024  # rows are computed in blocks of one fixed shape: a vectorised cosine depends on its neighbours


def inverse_frequencies(config: V41Config, *, compressed: bool) -> np.ndarray:
    """Radians per position, float64 [F].

    `compressed` layers (ratio > 0) use compress_rope_theta stretched by YaRN; window-only and draft layers rope_theta alone.
    YaRN here has no amplitude factor and applies at every length.
    """
    dims = config.qk_rope_head_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    frequencies = theta ** -(np.arange(0, dims, 2, dtype=np.float64) / dims)
    if not compressed:
        return frequencies
    yarn = config.rope_scaling

    def dim_of(rotations: float) -> float:
        return (
            dims * math.log(yarn.original_max_position_embeddings / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        )

    low = max(math.floor(dim_of(yarn.beta_fast)), 0)
    high = min(math.ceil(dim_of(yarn.beta_slow)), dims - 1)
    ramp = np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    return frequencies * (1.0 - ramp) + frequencies / yarn.factor * ramp


class RopeTable:
    """Cosines and sines by position, grown on demand; the angle is taken in float64 and stored in `dtype`."""

    def __init__(self, frequencies_F: np.ndarray, dtype: torch.dtype) -> None:
        self._frequencies_F = frequencies_F
        self._dtype = dtype
        self._table_P2F = torch.empty(0, 2, len(frequencies_F), dtype=dtype)

    def __call__(self, positions: Tensor) -> Tensor:
        """[…, 2, F] for int64 positions […]: cosines, then sines."""
        needed = int(positions.max()) + 1 if positions.numel() else 0
        while len(self._table_P2F) < needed:
            block = _block(self._frequencies_F, len(self._table_P2F), self._dtype)
            self._table_P2F = torch.cat((self._table_P2F, block))
        return self._table_P2F[positions]


def rope_table(frequencies_F: np.ndarray, num_positions: int, dtype: torch.dtype) -> Tensor:
    """[P, 2, F]: what a `RopeTable` says of positions 0 … num_positions - 1."""
    return rope_rows(frequencies_F, 0, num_positions, dtype)


def rope_rows(frequencies_F: np.ndarray, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """[count, 2, F]: the same of `count` positions from `first` on."""
    begin = first // BLOCK_POSITIONS * BLOCK_POSITIONS
    blocks = [_block(frequencies_F, at, dtype) for at in range(begin, first + count, BLOCK_POSITIONS)]
    return torch.cat(blocks)[first - begin :][:count].contiguous()


def _block(frequencies_F: np.ndarray, first: int, dtype: torch.dtype) -> Tensor:
    """[BLOCK_POSITIONS, 2, F] from position `first` on."""
    angles_PF = np.outer(np.arange(first, first + BLOCK_POSITIONS, dtype=np.float64), frequencies_F)
    return torch.from_numpy(np.stack((np.cos(angles_PF), np.sin(angles_PF)), axis=1)).to(dtype)
