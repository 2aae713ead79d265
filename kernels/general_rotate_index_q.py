"""Index queries of any number of dims turned and rounded to the FP4 index grid in one pass (Triton).

Legend: T rows · I index heads · K dims = G groups of P = 16 pairs, the last 2F turned · L lines (a head of a row) of a program.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import fp4_power
from deepinfer.kernels.triton_grids import greatest_of_pairs, pair_on_e2m1_grid
from deepinfer.kernels.triton_norm_rope import angles, check_width, rotated_pairs
from torch import Tensor

GROUP, LINES, WARPS = 32, 4, 1


@triton.jit(do_not_specialize=["lines"])
def _rotate_quantise(
    q_ptr, rope_ptr, out_ptr, lines, heads, LINES: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr
):  # fmt: skip
    line_L = tl.program_id(0) * LINES + tl.arange(0, LINES)
    there_L = line_L < lines
    pair_1GP = (tl.arange(0, GROUPS)[:, None] * 16 + tl.arange(0, 16)[None, :])[None]
    place_LGP = line_L.to(tl.int64)[:, None, None] * (GROUPS * 16) + pair_1GP
    q_LGP = tl.load(q_ptr + place_LGP, mask=there_L[:, None, None], other=0)
    cos_LGP, sin_LGP, turned_LGP = angles(rope_ptr, line_L // heads, there_L, GROUPS, 16, FREQUENCIES)
    q_LGP = rotated_pairs(q_LGP, cos_LGP, sin_LGP, turned_LGP)
    power_LG = fp4_power(greatest_of_pairs(q_LGP, 2))
    grid_LGP = pair_on_e2m1_grid(q_LGP, tl.broadcast_to(power_LG[:, :, None], q_LGP.shape))
    tl.store(out_ptr + place_LGP, grid_LGP, mask=there_L[:, None, None])


def rotate_quantise_index_q(q_TIK: Tensor, rope_T2F: Tensor, out_TIK: Tensor | None = None) -> Tensor:
    """q bfloat16 [T, I, K] with its last 2F dims turned by rope float32 [T, 2, F], then rounded to FP4 with scales per 32."""
    rows, heads, dims = q_TIK.shape
    frequencies = rope_T2F.shape[2]
    check_width(dims, frequencies, GROUP)
    assert q_TIK.dtype == torch.bfloat16 and q_TIK.is_contiguous(), "q is contiguous bfloat16"
    assert rope_T2F.dtype == torch.float32 and rope_T2F.is_contiguous(), "contiguous float32 cosines and sines"
    out_TIK = torch.empty_like(q_TIK) if out_TIK is None else out_TIK
    assert out_TIK.shape == q_TIK.shape and out_TIK.dtype == q_TIK.dtype and out_TIK.is_contiguous(), "out is like q"
    if rows * heads:
        _rotate_quantise[(triton.cdiv(rows * heads, LINES),)](
            q_TIK.view(torch.int32), rope_T2F, out_TIK.view(torch.int32), rows * heads, heads,
            LINES=LINES, GROUPS=dims // GROUP, FREQUENCIES=frequencies, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out_TIK
