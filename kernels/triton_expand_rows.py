"""Packed cache rows read back as bfloat16 numbers, exactly.

Legend: N rows read · K numbers of a row · [A, B, R] a store.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import any_power_value, as_bf16, e2m1_values, e4m3_values, pair_of_bf16
from deepinfer.kernels.triton_norm_rope import check_store, check_width, row_starts
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

GROUPS = {"window": (32, 33), "main": (16, 9), "index": (32, 17)}  # numbers and bytes that share a scale
TILE_ROWS, WARPS = {"window": 2, "main": 4, "index": 16}, 1  # measured on an H200


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _expand_rows(
    store_ptr, rows_ptr, out_ptr, num_rows, block_stride, BLOCK_ROWS: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, CODE_BYTES: tl.constexpr, SCALES: tl.constexpr, MAIN: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_rows
    base_R, seen_R = row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS, CODE_BYTES + SCALES)
    group_G = tl.arange(0, SCALES)
    bytes_P: tl.constexpr = CODE_BYTES // SCALES
    inner_GP = group_G[:, None] * bytes_P + tl.arange(0, bytes_P)[None, :]
    codes_RGP = tl.load(store_ptr + base_R[:, None, None] + inner_GP[None], mask=seen_R[:, None, None], other=0)
    scale_RG = tl.load(store_ptr + base_R[:, None] + CODE_BYTES + group_G[None, :], mask=seen_R[:, None], other=0)
    factor_RG = e4m3_values(scale_RG) if MAIN else any_power_value(scale_RG.to(tl.int32))
    row_R11 = row_R.to(tl.int64)[:, None, None]
    if CODE_BYTES == WIDTH:
        values_RGK = tl.where(seen_R[:, None, None], e4m3_values(codes_RGP) * factor_RG[:, :, None], 0.0)
        tl.store(out_ptr + row_R11 * WIDTH + inner_GP[None], as_bf16(values_RGK), mask=there_R[:, None, None])
    else:
        codes_RGP = codes_RGP.to(tl.int32)
        even_RGP, odd_RGP = e2m1_values(codes_RGP), e2m1_values(codes_RGP >> 4)
        pair_RGP = pair_of_bf16(even_RGP * factor_RG[:, :, None], odd_RGP * factor_RG[:, :, None])
        pair_RGP = tl.where(seen_R[:, None, None], pair_RGP, 0)
        tl.store(out_ptr + row_R11 * CODE_BYTES + inner_GP[None], pair_RGP, mask=there_R[:, None, None])


def expand_rows(kind: str, store_ABR: Tensor, rows_N: Tensor) -> Tensor:
    """bfloat16 [N, K] of the rows with numbers `rows_N` (int32); zeros where it is negative, whatever the store holds."""
    assert kind in GROUPS, (
        f"expand_rows was asked for rows of kind {kind!r}; it reads {', '.join(GROUPS)}: give one of them"
    )
    assert rows_N.dtype == torch.int32 and rows_N.is_contiguous(), "row numbers are contiguous int32"
    (numbers, group_bytes), tile_rows = GROUPS[kind], TILE_ROWS[kind]
    scales = store_ABR.shape[2] // group_bytes
    width = scales * numbers
    check_width(width, 0, numbers)
    check_store(store_ABR, scales * group_bytes, alignment_bytes=4 if kind == "index" else 16)
    code_bytes = width if kind == "window" else width // 2
    out_NK = torch.empty(len(rows_N), width, dtype=torch.bfloat16, device=store_ABR.device)
    written = out_NK if kind == "window" else out_NK.view(torch.int32)  # numbers of FP4 rows are made in pairs
    if len(rows_N):
        _expand_rows[(triton.cdiv(len(rows_N), tile_rows),)](
            store_ABR, rows_N, written, len(rows_N), store_ABR.stride(0), BLOCK_ROWS=store_ABR.shape[1],
            ROWS=tile_rows, WIDTH=width, CODE_BYTES=code_bytes, SCALES=scales,
            MAIN=kind == "main", num_warps=WARPS, **OVERLAP,
        )  # fmt: skip
    return out_NK
