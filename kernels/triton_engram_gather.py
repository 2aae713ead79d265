"""Rows of the n-gram memory's table as bfloat16, from device memory or, over the bus, from pinned host memory.

A pinned tensor's address holds on the device too, so the same loads serve both. Powers may lie on the device while codes stay
on the host: they are a 33rd of the table, and over the bus 8 bytes cost as much as 64.

Legend: N rows gathered · A rows of the table · K = 256 columns = G groups of 32 · R rows of a program.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import any_power_value, as_bf16, e4m3_values
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

GROUP = 32
TILE_ROWS, WARPS = 4, 1  # measured on an H200


@triton.jit(do_not_specialize=["num_rows"])  # or steps of other sizes would wait for their own compilation
def _engram_gather(
    codes_ptr, powers_ptr, rows_ptr, out_ptr, num_rows, ROWS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_rows
    place_R = tl.load(rows_ptr + row_R, mask=there_R, other=0)
    read_R = there_R & (place_R >= 0)
    group_G = tl.arange(0, GROUPS)
    column_GK = group_G[:, None] * 32 + tl.arange(0, 32)[None, :]
    code_RGK = (place_R * (GROUPS * 32))[:, None, None] + column_GK[None]
    codes_RGK = tl.load(codes_ptr + code_RGK, mask=read_R[:, None, None], other=0)
    power_RG = tl.load(powers_ptr + (place_R * GROUPS)[:, None] + group_G[None, :], mask=read_R[:, None], other=0)
    values_RGK = e4m3_values(codes_RGK) * any_power_value(power_RG.to(tl.int32))[:, :, None]
    out_RGK = row_R.to(tl.int64)[:, None, None] * (GROUPS * 32) + column_GK[None]
    tl.store(out_ptr + out_RGK, as_bf16(values_RGK), mask=there_R[:, None, None])


def engram_gather(codes_AK: Tensor, powers_AG: Tensor, rows_TR: Tensor) -> Tensor:
    """bfloat16 [T, R · K] of E4M3 rows and their E8M0 powers, zeros for a negative number; `rows_TR` int64 on the device, the
    table there or pinned."""
    width = codes_AK.shape[1]
    assert codes_AK.dtype == torch.float8_e4m3fn and codes_AK.is_contiguous(), "codes are contiguous E4M3"
    assert powers_AG.dtype == torch.uint8 and powers_AG.is_contiguous(), "powers are contiguous bytes"
    assert powers_AG.shape == (len(codes_AK), width // GROUP) and width & (width - 1) == 0, "a power per 32 columns"
    assert rows_TR.dtype == torch.int64 and rows_TR.is_contiguous(), "row numbers are contiguous int64"
    on_device = rows_TR.is_cuda
    for table in (codes_AK, powers_AG):
        assert table.is_cuda == on_device or table.is_pinned(), "the table lies on the device or in pinned memory"
    out_TF = torch.empty(len(rows_TR), rows_TR.shape[1] * width, dtype=torch.bfloat16, device=rows_TR.device)
    if rows_TR.numel():
        _engram_gather[(triton.cdiv(rows_TR.numel(), TILE_ROWS),)](
            codes_AK.view(torch.uint8), powers_AG, rows_TR, out_TF, rows_TR.numel(), ROWS=TILE_ROWS,
            GROUPS=width // GROUP, num_warps=WARPS, **OVERLAP,
        )  # fmt: skip
    return out_TF
