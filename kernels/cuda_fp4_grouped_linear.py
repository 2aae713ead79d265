"""Grouped product of MXFP4 experts on Hopper: codes decoded in registers, rows gathered by the kernel itself. GPU only.

Legend: T tokens · P sorted rows · E experts · E1 E + 1 · K inputs · N outputs.
"""

from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from deepinfer.kernels.fp4_expert_tiles import TiledFp4Experts
from torch import Tensor

MAX_EXPERTS = 384
SHARED_BYTES = 232448
# See the macros of cuda_fp4_experts.cu; measured on an H200. All give the same bits.
FEW = {"TILE_ROWS": 40, "PRODUCTS": 1, "SLOTS": 8, "DELAY": 2}  # where bytes and decoding bind
MIDDLE = {"TILE_ROWS": 80, "PRODUCTS": 1, "SLOTS": 6, "DELAY": 2}  # where decoding and products hinder each other
MANY = {"TILE_ROWS": 128, "PRODUCTS": 2, "SLOTS": 9, "DELAY": 4}  # where products bind
FEW_ROWS, MIDDLE_ROWS = 36, 72  # rows an expert, on average, up to which each is fastest


def fp4_grouped_linear(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: TiledFp4Experts) -> Tensor:
    """out[p] = x[rows[p]] · weightᵀ of p's expert, bfloat16 [P, N]; without rows x is already sorted.

    Rows from starts[E] on are not written. The launch reads no count on the host, so a graph may replay it with other counts.
    """
    check_rows(x_TK, rows_P, starts_E1, weight, paired=False)
    out_PN = x_TK.new_empty(x_TK.shape[0] if rows_P is None else rows_P.shape[0], weight.shape[1])
    if out_PN.shape[0]:
        launch_fp4(x_TK, rows_P, starts_E1, weight, out_PN)
    return out_PN


def check_rows(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: TiledFp4Experts, paired: bool) -> None:
    """Raises AssertionError where the inputs do not lie as the kernel reads them."""
    assert isinstance(weight, TiledFp4Experts), (
        f"the product of MXFP4 experts was given {type(weight).__name__}; it reads weights re-laid once, at load: give "
        f"tile_experts(weight{', paired=True' if paired else ''})"
    )
    assert weight.paired == paired, (
        f"tiles with paired={weight.paired} were given to {'fp4_experts_up' if paired else 'fp4_grouped_linear'}; gate and up "
        f"rows share tiles for fp4_experts_up alone: re-lay this weight with tile_experts(weight, paired={paired})"
    )
    experts, _, columns = weight.shape
    assert x_TK.dtype == torch.bfloat16 and x_TK.is_contiguous() and x_TK.shape[1] == columns, (
        f"x is {x_TK.dtype} {tuple(x_TK.shape)}; rows are copied as they lie: give contiguous bfloat16 [T, {columns}]"
    )
    assert x_TK.data_ptr() % 16 == 0, (
        "x begins between multiples of 16 bytes, the kernel copies 16 at a time: give x.clone()"
    )
    assert x_TK.numel() < 2**31, f"x has {x_TK.numel()} numbers, places in it have 31 bits: give fewer rows at a time"
    assert rows_P is None or (rows_P.dtype == torch.int32 and rows_P.is_contiguous()), "rows are contiguous int32"
    assert experts <= MAX_EXPERTS, f"{experts} experts; a block lists {MAX_EXPERTS}: give fewer experts at a time"
    assert starts_E1.dtype == torch.int32 and starts_E1.is_contiguous() and starts_E1.shape == (experts + 1,), (
        f"starts are {starts_E1.dtype} {tuple(starts_E1.shape)}; every expert's rows begin where the last one's end: give "
        f"contiguous int32 [{experts + 1}], the end behind them"
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
    device = device_of(x_TK)
    launch = _program(device, columns, outputs, limit, _shape(out.shape[0], experts))
    blocks = num_multiprocessors(device)
    launch((blocks,), x_TK, rows_P, starts_E1, weight.pieces_EMCB, weights_P, out, weight.counter_2, experts)


def _shape(rows: int, experts: int) -> str:
    """Which of the shapes; rows of padding beyond the last start count, since the host reads no counts."""
    return "few" if rows <= FEW_ROWS * experts else "middle" if rows <= MIDDLE_ROWS * experts else "many"


@cache
def _program(device: int, columns: int, outputs: int, limit: float | None, name: str) -> Launch:
    shape = {"few": FEW, "middle": MIDDLE, "many": MANY}[name]
    swiglu = {"FUSED": 0} if limit is None else {"FUSED": 1, "LIMIT": f"{float(limit)}f"}
    program = CudaProgram("cuda_fp4_experts.cu", {"K": columns, "N_OUT": outputs, **swiglu, **shape})
    threads = 128 + 512 // shape["PRODUCTS"]
    return program.kernel("fp4_experts", threads=threads, shared_bytes=SHARED_BYTES, overlap=True)
