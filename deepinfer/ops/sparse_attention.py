"""Attention of one query row over cache rows that lists name: rotation, softmax with sink, inverse rotation in one op.

Legend: T rows · H heads · K head dim · F rope frequencies · W window slots · S selected slots · A blocks of a store ·
B rows of a block · R bytes or numbers of a row.
"""

import torch
from torch import Tensor

from deepinfer.ops.attention import attention
from deepinfer.ops.numbered_rows import expand_rows
from deepinfer.ops.rotate import rotate
from deepinfer.ops.rows import RowKind


def sparse_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rope_T2F: Tensor,
    spread: bool | None = None,
) -> Tensor:
    """[T, H, K] of q's dtype from q before its rotation.

    A store is a view [A, B, R] of uint8 rows (R = K + K/32: FP8 window rows; R = K/2 + K/16: FP4 main rows) or of numbers
    (R = K); row number i is row i % B of block i // B. Lists hold int32 row numbers, -1 where a slot is hidden. Keys are
    values too. The sink only enters the denominator, so a row that sees no key is all zeros. `spread`: whether a kernel gives a
    row to several blocks, None: where it pays; the bits are the same.
    """
    q_THK = rotate(q_THK, rope_T2F)
    keys = [_listed(window_ABR, window_rows_TW, q_THK)]
    if selected_ABR is not None:
        assert selected_rows_TS is not None
        keys.append(_listed(selected_ABR, selected_rows_TS, q_THK))
    (window_TWK, window_mask_TW), (selected_TSK, selected_mask_TS) = (*keys, (None, None))[:2]
    assert window_TWK is not None and window_mask_TW is not None
    out_THK = attention(q_THK, window_TWK, window_mask_TW, selected_TSK, selected_mask_TS, sink_H, scale)
    return rotate(out_THK, rope_T2F, inverse=True)


def row_kind(store_ABR: Tensor, head_dim: int) -> RowKind:
    """The format of a store's rows, which their length tells."""
    if store_ABR.dtype != torch.uint8:
        return "plain"
    kinds: dict[int, RowKind] = {head_dim + head_dim // 32: "window", head_dim // 2 + head_dim // 16: "main"}
    row_bytes = store_ABR.shape[2]
    assert row_bytes in kinds, (
        f"sparse_attention was given a store of rows of {row_bytes} bytes for heads of {head_dim}; their length tells the "
        f"format: give rows of {' or '.join(map(str, kinds))} bytes, or unpacked ones"
    )
    return kinds[row_bytes]


def _listed(store_ABR: Tensor, rows_TJ: Tensor, q_THK: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [T, J, K] of the listed rows, zeros where hidden, and their mask."""
    kind = row_kind(store_ABR, q_THK.shape[2])
    return expand_rows(kind, store_ABR, rows_TJ, q_THK.dtype), rows_TJ >= 0
