"""Index queries turned and rounded to the FP4 index grid in one pass (Triton). Bit-equal to the twin: no fused multiply-adds.

Legend: T rows · I index heads · K = 128 dims, the last 2F turned · L lines (a head of a row) of a program. Columns go in pairs,
two bfloat16 in an int32, [L, G = 2 groups, P = 16], as two tiles: one that stands still and one of the F = 32 turned pairs.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import (
    fp4_power,
    high_half,
    low_half,
    pair_of_bf16,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e2m1_grid
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

DIMS, FREQUENCIES = 128, 32
LINES, WARPS = 16, 4  # measured on an H200


def rotate_quantise_index_q(q_TIK: Tensor, rope_T2F: Tensor, out_TIK: Tensor | None = None) -> Tensor:
    """q bf16 [T, I, 128] with its last 64 dims turned by rope float32 [T, 2, 32], then rounded to FP4 with scales per 32."""
    rows, heads, dims = q_TIK.shape
    assert q_TIK.dtype == torch.bfloat16 and q_TIK.is_contiguous() and dims == DIMS, "contiguous bf16 [T, I, 128]"
    assert rope_T2F.dtype == torch.float32 and rope_T2F.is_contiguous(), "contiguous float32 cosines and sines"
    assert rope_T2F.shape == (rows, 2, FREQUENCIES), f"a row has {FREQUENCIES} cosines and sines"
    out_TIK = torch.empty_like(q_TIK) if out_TIK is None else out_TIK
    assert out_TIK.shape == q_TIK.shape and out_TIK.dtype == q_TIK.dtype and out_TIK.is_contiguous(), "out is like q"
    assert q_TIK.data_ptr() % 16 == out_TIK.data_ptr() % 16 == 0, "q and out begin at 16 bytes"
    lines = rows * heads
    if lines:
        _rotate_quantise[(triton.cdiv(lines, LINES),)](
            q_TIK.view(torch.int32), rope_T2F, out_TIK.view(torch.int32), lines, heads,
            LINES=LINES, num_warps=WARPS, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out_TIK


@triton.jit(do_not_specialize=["lines"])  # or steps of other sizes would wait for their own compilation
def _rotate_quantise(q_ptr, rope_ptr, out_ptr, lines, heads, LINES: tl.constexpr):
    wait_for_earlier_launches()
    line_L = tl.program_id(0) * LINES + tl.arange(0, LINES)
    there_L11 = (line_L < lines)[:, None, None]
    pair_1GP = (tl.arange(0, 2)[:, None] * 16 + tl.arange(0, 16)[None, :])[None]
    place_LGP = line_L.to(tl.int64)[:, None, None] * 64 + pair_1GP
    angle_LGP = (line_L // heads)[:, None, None] * 64 + pair_1GP
    still_LGP = tl.load(q_ptr + place_LGP, mask=there_L11, other=0)
    moved_LGP = tl.load(q_ptr + place_LGP + 32, mask=there_L11, other=0)
    cos_LGP = tl.load(rope_ptr + angle_LGP, mask=there_L11, other=1.0)
    sin_LGP = tl.load(rope_ptr + angle_LGP + 32, mask=there_L11, other=0.0)
    even_LGP, odd_LGP = low_half(moved_LGP), high_half(moved_LGP)
    moved_LGP = pair_of_bf16(even_LGP * cos_LGP - odd_LGP * sin_LGP, odd_LGP * cos_LGP + even_LGP * sin_LGP)
    tl.store(out_ptr + place_LGP, _rounded(still_LGP), mask=there_L11)
    tl.store(out_ptr + place_LGP + 32, _rounded(moved_LGP), mask=there_L11)


@triton.jit
def _rounded(pair_LGP):
    power_LG = fp4_power(greatest_of_pairs(pair_LGP, 2))
    return pair_on_e2m1_grid(pair_LGP, tl.broadcast_to(power_LG[:, :, None], pair_LGP.shape))
