"""Grouped product of MXFP4 experts on Hopper: codes decoded in registers, rows gathered by the kernel itself. GPU only.

Legend: T tokens · P sorted rows · E experts · E1 E + 1 · K inputs · N outputs.
"""

from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, num_multiprocessors
from deepinfer.kernels.fp4_expert_tiles import TiledFp4Experts
from torch import Tensor

MAX_EXPERTS = 384
SHARED_BYTES = 232448
# See the macros of cuda_fp4_experts.cu; measured on an H200.
NARROW = {"TILE_ROWS": 64, "PRODUCTS": 1, "SLOTS": 6, "DELAY": 2}  # where bytes bind
WIDE = {"TILE_ROWS": 128, "PRODUCTS": 2, "SLOTS": 9, "DELAY": 4}  # where products bind
WIDE_ROWS = 48  # rows an expert, on average, from which WIDE is faster; both give the same bits


def fp4_grouped_linear(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: TiledFp4Experts) -> Tensor:
    """out[p] = x[rows[p]] · weightᵀ of p's expert, bfloat16 [P, N]; without rows x is already sorted.

    Rows from starts[E] on are not written. The launch reads no count on the host, so a graph may replay it with other counts.
    """
    assert not weight.paired, "a weight whose gate and up rows alternate belongs to fp4_experts_up"
    check_rows(x_TK, rows_P, starts_E1, weight)
    out_PN = x_TK.new_empty(x_TK.shape[0] if rows_P is None else rows_P.shape[0], weight.shape[1])
    if out_PN.shape[0]:
        launch_fp4(x_TK, rows_P, starts_E1, weight, out_PN)
    return out_PN


def check_rows(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: TiledFp4Experts) -> None:
    """Raises AssertionError where the inputs do not lie as the kernel reads them."""
    experts, _, columns = weight.shape
    assert x_TK.dtype == torch.bfloat16 and x_TK.is_contiguous(), "x is contiguous bfloat16"
    assert x_TK.shape[1] == columns and x_TK.data_ptr() % 16 == 0, (
        f"x has {columns} columns and begins at a multiple of 16 bytes"
    )
    assert columns % 128 == 0 and x_TK.numel() < 2**31, "columns come by 128; x has fewer than 2^31 numbers"
    assert rows_P is None or (rows_P.dtype == torch.int32 and rows_P.is_contiguous()), "rows are contiguous int32"
    assert starts_E1.dtype == torch.int32 and starts_E1.is_contiguous(), "starts are contiguous int32"
    assert starts_E1.shape == (experts + 1,) and experts <= MAX_EXPERTS, (
        f"one start an expert and the end; at most {MAX_EXPERTS}"
    )
    assert weight.pieces_EMCB.is_contiguous() and weight.pieces_EMCB.data_ptr() % 16 == 0, (
        "weight pieces are contiguous"
    )


def launch_fp4(
    x_TK: Tensor,
    rows_P: Tensor | None,
    starts_E1: Tensor,
    weight: TiledFp4Experts,
    out: Tensor,
    weights_P: Tensor | None = None,
    limit: float | None = None,
) -> None:
    """One launch over what check_rows has seen; with routing weights and a limit the kernel that ends in SwiGLU."""
    experts, outputs, columns = weight.shape
    device = x_TK.device.index
    launch = _program(device, columns, outputs, limit, out.shape[0] > WIDE_ROWS * experts)
    blocks = num_multiprocessors(device)
    launch((blocks,), x_TK, rows_P, starts_E1, weight.pieces_EMCB, weights_P, out, weight.counter_2, experts)


@cache
def _program(device: int, columns: int, outputs: int, limit: float | None, wide: bool) -> Launch:
    shape = WIDE if wide else NARROW
    swiglu = {"FUSED": 0} if limit is None else {"FUSED": 1, "LIMIT": f"{float(limit)}f"}
    program = CudaProgram("cuda_fp4_experts.cu", {"K": columns, "N_OUT": outputs, **swiglu, **shape})
    return program.kernel("fp4_experts", threads=128 + 512 // shape["PRODUCTS"], shared_bytes=SHARED_BYTES)
