"""Index scores of any number of heads and dims over blocks of any size, in plain Triton. Twins: deepinfer/ops/indexer.py.

Keys are decoded to bfloat16, exactly; products are summed in float32. A score depends on its query row and its key only,
and candidates have the bits that they have among all entries.

Legend: T rows · I index heads · K dims in P = K / 2 pairs · A cache blocks · B rows a block · R = K / 2 + K / 32 bytes ·
S sequences · J entries · C candidate blocks of E entries.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import PLAIN
from deepinfer.kernels.triton_formats import any_power_value, e2m1_values
from torch import Tensor

TILE, WARPS = 64, 4


def paged_index_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    out_TJ: Tensor,
    rows_together: int = 1,
) -> Tensor:
    """Scores of the first visible[t] entries of row t into out [T, J] (float32); what lies behind them is left alone."""
    return _launch(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, None, out_TJ)


def candidate_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    blocks_TC: Tensor,
    out_TJ: Tensor,
) -> Tensor:
    """Scores into out [T, E·C]: place E·c + e is entry E·blocks[t, c] + e, -inf where that is not visible."""
    assert blocks_TC.dtype == torch.int32 and blocks_TC.is_contiguous(), "block numbers are int32 and contiguous"
    assert out_TJ.shape[1] % blocks_TC.shape[1] == 0, "as many scores for every block"
    return _launch(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, blocks_TC, out_TJ)


def _launch(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    blocks_TC: Tensor | None,
    out_TJ: Tensor,
) -> Tensor:
    rows, heads, dims = q_TIK.shape
    row_bytes = dims // 2 + dims // 32
    assert q_TIK.dtype == torch.bfloat16 and dims % 32 == 0 and dims & (dims - 1) == 0, (
        f"q is bfloat16 [T, I, K], K a power of two from 32 on, not {q_TIK.dtype} of {dims}"
    )
    assert weight_TI.shape == (rows, heads), "one weight a head"
    assert store_ABR.dtype == torch.uint8 and store_ABR.shape[2] == row_bytes, f"rows of {row_bytes} bytes"
    assert store_ABR.stride()[1:] == (row_bytes, 1), "the rows of a block are adjacent"
    indices = (tables_SB, sequence_T, visible_T)
    assert all(x.dtype == torch.int32 for x in indices), "tables, sequences and lengths are int32"
    assert out_TJ.dtype == torch.float32 and len(out_TJ) == rows, "float32 scores, a line a row"
    assert all(x.is_contiguous() for x in (q_TIK, weight_TI, out_TJ, *indices)), (
        "everything but the store is contiguous"
    )
    width = out_TJ.shape[1]
    if rows and width:
        _index_scores[(triton.cdiv(width, TILE), rows)](
            q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, blocks_TC, out_TJ,
            store_ABR.stride(0), tables_SB.shape[1], width,
            HEADS=heads, PADDED=max(16, triton.next_power_of_2(heads)), PAIRS=dims // 2, BLOCK_ROWS=store_ABR.shape[1],
            TILE=TILE, CANDIDATES=0 if blocks_TC is None else width // blocks_TC.shape[1], num_warps=WARPS,
        )  # fmt: skip
    return out_TJ


@triton.jit(do_not_specialize=["table_width", "width"])  # or longer tables would wait for their own compilation
def _index_scores(
    q, weight, store, tables, sequence, visible, blocks, out, block_bytes, table_width, width,
    HEADS: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr, BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr,
    CANDIDATES: tl.constexpr,
):  # fmt: skip
    """`CANDIDATES`: entries of a block, 0 for all entries in their order."""
    operand = tl.float32 if PLAIN else tl.bfloat16  # the interpreter multiplies no bfloat16
    row, place_J = tl.program_id(1).to(tl.int64), tl.program_id(0) * TILE + tl.arange(0, TILE)
    seen = tl.load(visible + row)
    inside_J = place_J < width
    if CANDIDATES > 0:
        block_J = tl.load(blocks + row * (width // CANDIDATES) + place_J // CANDIDATES, mask=inside_J, other=-1)
        entry_J = tl.where(block_J < 0, seen, block_J * CANDIDATES + place_J % CANDIDATES)
    else:
        entry_J = place_J
    shown_J = inside_J & (entry_J < seen)
    if CANDIDATES > 0 or tl.program_id(0) * TILE < seen:
        table = tables + tl.load(sequence + row).to(tl.int64) * table_width
        block_J = tl.load(table + entry_J // BLOCK_ROWS, mask=shown_J, other=0)
        row_bytes: tl.constexpr = PAIRS + PAIRS // 16
        key_J = store + block_J.to(tl.int64) * block_bytes + (entry_J % BLOCK_ROWS) * row_bytes
        byte_P, shown_J1 = tl.arange(0, PAIRS), shown_J[:, None]
        codes_JP = tl.load(key_J[:, None] + byte_P[None, :], mask=shown_J1, other=0).to(tl.int32)
        power_JP = tl.load(key_J[:, None] + PAIRS + byte_P[None, :] // 16, mask=shown_J1, other=0).to(tl.int32)
        scale_JP = any_power_value(power_JP)
        head_I = tl.arange(0, PADDED)
        real_1I = (head_I < HEADS)[None, :]
        q_PI = q + row * (HEADS * PAIRS * 2) + head_I[None, :] * (PAIRS * 2) + byte_P[:, None] * 2
        even_PI = tl.load(q_PI, mask=real_1I, other=0.0).to(operand)
        odd_PI = tl.load(q_PI + 1, mask=real_1I, other=0.0).to(operand)
        dot_JI = tl.dot((e2m1_values(codes_JP) * scale_JP).to(operand), even_PI)
        dot_JI = tl.dot((e2m1_values(codes_JP >> 4) * scale_JP).to(operand), odd_PI, dot_JI)
        weight_I = tl.load(weight + row * HEADS + head_I, mask=head_I < HEADS, other=0.0).to(tl.float32)
        part_JI = tl.maximum(dot_JI, 0.0, propagate_nan=tl.PropagateNan.ALL) * weight_I[None, :]
        score_J = tl.sum(tl.where(real_1I, part_JI, 0.0), axis=1)
        if CANDIDATES > 0:
            tl.store(out + row * width + place_J, tl.where(shown_J, score_J, float("-inf")), mask=inside_J)
        else:
            tl.store(out + row * width + place_J, score_J, mask=shown_J)
