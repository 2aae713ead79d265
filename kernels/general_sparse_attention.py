"""Attention over listed cache rows for any number of heads and slots: the Triton kernel, with lists filled up to its blocks.

The keys of a list are shared out among programs by the lists' widths alone, so that equal widths give equal bits.
"""

import torch
from deepinfer.kernels import triton_sparse_attention as kernel
from torch import Tensor

SPLIT_SLOTS = 32  # of a program, one block; measured on an H200: more take longer


def sparse_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rope_T2F: Tensor,
) -> Tensor:
    """[T, H, K] bfloat16; deepinfer.ops.sparse_attention says what is computed."""
    lists = [_whole_blocks(rows_TJ) for rows_TJ in (window_rows_TW, selected_rows_TS) if rows_TJ is not None]
    splits = max(1, sum(rows_TJ.shape[1] for rows_TJ in lists) // SPLIT_SLOTS)
    window, selected = lists[0], lists[1] if len(lists) > 1 else None
    return kernel.sparse_attention(
        q_THK, window_ABR, window, selected_ABR, selected, sink_H, scale, rope_T2F, splits=splits
    )


def _whole_blocks(rows_TJ: Tensor) -> Tensor:
    """The list with hidden slots at its end, where it does not fill whole blocks."""
    missing = -rows_TJ.shape[1] % kernel.BLOCK
    return torch.nn.functional.pad(rows_TJ, (0, missing), value=-1) if missing else rows_TJ
