"""Grouped product of MXFP4 experts on Hopper: codes decoded in registers, rows gathered by the kernel itself. GPU only.

Legend: T tokens · P sorted rows · E experts · E1 E + 1 · K inputs · N outputs.
"""

from dataclasses import dataclass
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from deepinfer.kernels.fp4_expert_tiles import MAX_BLOCKS, TiledFp4Experts
from torch import Tensor

MAX_EXPERTS = 384
SHARED_BYTES = 232448
ANY = 2**31


@dataclass(frozen=True)
class Form:
    """Macros of cuda_fp4_experts.cu. All forms give the same bits; which is fastest was measured on an H200.

    `groups` warpgroups multiply `products` units of 64 weight rows each, `tile_rows` rows of an expert at a time, or up to
    `fewer_rows` by narrower products. With `cut` blocks share out few rounds of work evenly, else they draw it.
    """

    groups: int
    products: int
    tile_rows: int
    fewer_rows: int
    slots: int
    delay: int
    cut: bool = True

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)

    @property
    def units(self) -> int:
        return self.groups * self.products

    def macros(self) -> dict[str, int]:
        return {name.upper(): int(value) for name, value in vars(self).items()}


FEW = Form(4, 1, 40, 24, slots=8, delay=2, cut=False)  # where bytes and decoding bind
ROWS_64, ROWS_80 = Form(4, 1, 64, 32, slots=6, delay=2), Form(4, 1, 80, 80, slots=6, delay=2)
ROWS_96 = Form(4, 1, 96, 96, slots=5, delay=2)
WIDE, WIDE_3 = Form(2, 2, 128, 64, slots=9, delay=4), Form(3, 1, 128, 64, slots=4, delay=1)
# Rows an expert, on average, up to which each is fastest; loads vary, so that a tile holds some more than the average. Of six
# experts' first product 144 items of three units are shared out over 132 multiprocessors, where four units make 108 items; of
# the second four make 120, which leaves little to share out.
FORMS_UP = (
    (36, FEW),
    (57, ROWS_64),
    (72, ROWS_80),
    (86, Form(3, 1, 96, 64, slots=6, delay=2)),
    (100, Form(3, 1, 112, 64, slots=5, delay=2)),
    (128, WIDE_3),
    (150, ROWS_80),
    (200, ROWS_96),
    (ANY, WIDE_3),
)
FORMS = (
    (36, FEW),
    (57, ROWS_64),
    (72, ROWS_80),
    (86, ROWS_96),
    (128, WIDE),
    (150, ROWS_80),
    (200, ROWS_96),
    (ANY, WIDE),
)


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
    device, rows = device_of(x_TK), out.shape[0]
    form = form_of(rows, experts, FORMS if limit is None else FORMS_UP)
    blocks = min(num_multiprocessors(device), MAX_BLOCKS)
    carry = (
        x_TK.new_empty(blocks * 256 * form.tile_rows, dtype=torch.float32)
        if may_cut(form, rows, weight, blocks)
        else None
    )
    launch = _program(device, columns, outputs, limit, form)
    launch((blocks,), x_TK, rows_P, starts_E1, weight.pieces_EMCB, weights_P, out, weight.counters, carry, experts)


def form_of(rows: int, experts: int, forms: tuple[tuple[int, Form], ...]) -> Form:
    """By the average; rows of padding beyond the last start count, since the host reads no counts."""
    return next(form for most, form in forms if rows <= most * experts)


def may_cut(form: Form, rows: int, weight: TiledFp4Experts, blocks: int) -> bool:
    """Whether any counts of so many rows make more items than blocks, so that the launch needs memory for sums."""
    experts, outputs, _ = weight.shape
    tiles = rows // form.tile_rows + min(experts, rows)
    return form.cut and tiles * -(-outputs // (64 * form.units)) > blocks


@cache
def _program(device: int, columns: int, outputs: int, limit: float | None, form: Form) -> Launch:
    swiglu = {"FUSED": 0} if limit is None else {"FUSED": 1, "LIMIT": f"{float(limit)}f"}
    program = CudaProgram("cuda_fp4_experts.cu", {"K": columns, "N_OUT": outputs, **swiglu, **form.macros()})
    return program.kernel("fp4_experts", threads=form.threads, shared_bytes=SHARED_BYTES, overlap=True)
