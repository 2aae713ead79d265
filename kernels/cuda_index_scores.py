"""Index scores over paged FP4 keys on Hopper (CUDA C++, GPU only): key bytes are read once for the rows that share them.

Exact products on the tensor cores, in one of two forms: e4m3 with float32 sums over groups of 32 dims, for any scales; int8
over all 128 dims where rows share keys and the scales of a tile's keys, and of a query's heads, lie within a factor of 8. Where
both apply they give the same bits. A query element below 2^-17 of its head's largest is rounded to 2^-18 of that.

A score's bits depend on its query row and its key only: not on the batch, the position, the chunking or `rows_together`.

Legend: T rows · I = 32 index heads · K = 128 dims · A cache blocks · B rows a block · R = 68 bytes · S sequences · J entries.
"""

import ctypes
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from torch import Tensor

HEADS, DIMS, ROW_BYTES, TILE = 32, 128, 68, 128
PACK = 2  # rows of an integer product
MAX_ROWS_TOGETHER = 16


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
    """Scores of the first visible[t] entries of row t into out [T, J] (float32); what lies behind them is left alone.

    Rows of a sequence are adjacent; up to `rows_together` of them share a key's decoding (the verify length, or 16 in prefill).
    Grid and launch depend on shapes only, so a graph can be captured.
    """
    assert 1 <= rows_together <= MAX_ROWS_TOGETHER, "from 1 to 16 rows share keys"
    check_scores(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, out_TJ)
    launch_scores(q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, None, out_TJ, rows_together)
    return out_TJ


def check_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    out_TJ: Tensor,
) -> None:
    rows = q_TIK.shape[0]
    assert q_TIK.dtype == torch.bfloat16 and q_TIK.shape == (rows, HEADS, DIMS), "q is bf16 [T, 32, 128]"
    assert weight_TI.dtype in (torch.float32, torch.bfloat16) and weight_TI.shape == (rows, HEADS), "one weight a head"
    assert store_ABR.dtype == torch.uint8 and store_ABR.shape[1] in (64, 128), "blocks of 64 or 128 rows of bytes"
    assert store_ABR.shape[2] == ROW_BYTES and store_ABR.stride()[1:] == (ROW_BYTES, 1), "adjacent rows of 68 bytes"
    assert store_ABR.stride(0) % 16 == 0 and store_ABR.data_ptr() % 16 == 0, "blocks begin at multiples of 16 bytes"
    assert q_TIK.data_ptr() % 16 == 0, "q begins at a multiple of 16 bytes"
    indices = (tables_SB, sequence_T, visible_T)
    assert all(x.dtype == torch.int32 for x in indices), "tables, sequences and lengths are int32"
    assert sequence_T.shape == visible_T.shape == (rows,), "one sequence and one length a row"
    assert out_TJ.dtype == torch.float32 and out_TJ.shape[0] == rows, "float32 scores, a line a row"
    assert all(x.is_contiguous() for x in (q_TIK, weight_TI, out_TJ, *indices)), (
        "everything but the store is contiguous"
    )


def launch_scores(
    q_TIK: Tensor,
    weight_TI: Tensor,
    store_ABR: Tensor,
    tables_SB: Tensor,
    sequence_T: Tensor,
    visible_T: Tensor,
    blocks_TC: Tensor | None,
    out_TJ: Tensor,
    rows_together: int,
) -> None:
    if not len(q_TIK):
        return
    index = device_of(q_TIK)
    _kernel(index, rows_together, blocks_TC is not None)(
        (num_multiprocessors(index),),
        q_TIK, weight_TI, store_ABR, tables_SB, sequence_T, visible_T, blocks_TC, out_TJ,
        ctypes.c_int64(store_ABR.stride(0)), len(q_TIK), tables_SB.shape[1], store_ABR.shape[1], out_TJ.shape[1],
        weight_TI.dtype == torch.bfloat16,
    )  # fmt: skip


def ring_of(rows_together: int) -> tuple[int, int]:
    """Warpgroups that multiply, and stages of their ring: a multiple of them, and few, so that the first tiles come first."""
    return (4, 8) if rows_together == 1 else (3, 9)


@cache
def _kernel(device: int, rows_together: int, candidates: bool) -> Launch:
    warpgroups, stages = ring_of(rows_together)
    macros = {"ROWS": rows_together, "WARPGROUPS": warpgroups, "STAGES": stages, "CANDIDATES": int(candidates)}
    integer_rows = -(-rows_together // PACK) * PACK if rows_together > 1 else 0
    query_bytes = (rows_together + integer_rows) * HEADS * DIMS + max(1, integer_rows) * (HEADS * 4 + 8)
    shared = query_bytes + stages * (TILE * ROW_BYTES + 16) + warpgroups * 128 * 16 + 40 * 4
    program = CudaProgram("cuda_index_scores.cu", macros)
    return program.kernel("index_scores", threads=warpgroups * 128 + 128, shared_bytes=shared, overlap=True)
