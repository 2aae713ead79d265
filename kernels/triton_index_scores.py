"""Index scores over paged FP4 keys (Triton): the portable kernel, a program for every row and tile of entries.

Keys are decoded to bf16, exactly; products are summed in float32. A score depends on its query row and its key only.

Legend: T rows · I = 32 index heads · K = 128 dims · A cache blocks · B rows a block · R = 68 bytes · S sequences · J entries.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS, DIMS, ROW_BYTES = 32, 128, 68
TILE = 64


def paged_index_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    out_TJ: Tensor,
) -> Tensor:
    """Scores of the first visible[t] entries of row t into out [T, J] (float32); what lies behind them is left alone."""
    rows, width = out_TJ.shape
    assert q_TIK.dtype == torch.bfloat16 and q_TIK.shape == (rows, HEADS, DIMS), "q is bf16 [T, 32, 128]"
    assert weight_TI.shape == (rows, HEADS), "one weight a head"
    assert store_ABR.dtype == torch.uint8 and store_ABR.stride()[1:] == (ROW_BYTES, 1), "adjacent rows of 68 bytes"
    assert store_ABR.shape[1:] in ((64, ROW_BYTES), (128, ROW_BYTES)), "blocks of 64 or 128 rows"
    indices = (tables_SB, sequence_T, visible_T)
    assert all(x.dtype == torch.int32 for x in indices), "tables, sequences and lengths are int32"
    assert out_TJ.dtype == torch.float32, "float32 scores"
    assert all(x.is_contiguous() for x in (q_TIK, weight_TI, out_TJ, *indices)), (
        "everything but the store is contiguous"
    )
    _index_scores[(triton.cdiv(width, TILE), rows)](
        q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, out_TJ,
        store_ABR.stride(0), tables_SB.shape[1], width, store_ABR.shape[1], TILE, q_TIK.is_cuda, num_warps=4,
    )  # fmt: skip
    return out_TJ


@triton.jit
def _index_scores(
    q, weight, store, tables, sequence, visible, out,
    block_bytes, table_width, width, B: tl.constexpr, TILE: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    operand = tl.bfloat16 if BF16 else tl.float32  # the interpreter multiplies no bf16
    row, first = tl.program_id(1), tl.program_id(0) * TILE
    shown = tl.minimum(tl.load(visible + row), width)
    if first < shown:
        entry_J = first + tl.arange(0, TILE)
        block = tl.load(tables + tl.load(sequence + row) * table_width + first // B)  # a tile lies inside a block
        key_J = store + block.to(tl.int64) * block_bytes + (entry_J % B) * 68
        byte_P = tl.arange(0, 64)
        shown_J1 = (entry_J < shown)[:, None]
        codes_JP = tl.load(key_J[:, None] + byte_P[None, :], mask=shown_J1, other=0).to(tl.int32)
        scale_JP = tl.load(key_J[:, None] + 64 + byte_P[None, :] // 16, mask=shown_J1, other=0).to(tl.int32)
        scale_JP = tl.where(scale_JP == 255, float("nan"), (scale_JP << 23).to(tl.float32, bitcast=True))
        head_I = tl.arange(0, 32)
        q_PI = q + row.to(tl.int64) * 4096 + head_I[None, :] * 128 + byte_P[:, None] * 2
        dot_JI = tl.dot(_decoded(codes_JP & 15, scale_JP).to(operand), tl.load(q_PI).to(operand))
        dot_JI = tl.dot(_decoded(codes_JP >> 4, scale_JP).to(operand), tl.load(q_PI + 1).to(operand), dot_JI)
        weight_I = tl.load(weight + row * 32 + head_I).to(tl.float32)
        shown_JI = tl.maximum(dot_JI, 0.0, propagate_nan=tl.PropagateNan.ALL)
        score_J = tl.sum(shown_JI * weight_I[None, :], axis=1)
        tl.store(out + row.to(tl.int64) * width + entry_J, score_J, mask=entry_J < shown)


@triton.jit
def _decoded(code, scale):
    """E2M1 codes times their scales: numbers that bf16 holds exactly."""
    size = (code & 7).to(tl.float32)
    size = tl.where(size < 4, size * 0.5, tl.where(size < 6, size - 2, size * 2 - 8))
    return tl.where(code >= 8, -size, size) * scale
