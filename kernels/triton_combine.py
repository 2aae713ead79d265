"""The experts' results of a row added up: slots from first to last, then the shared expert, in float32, rounded once.

Legend: T rows · X slots · P sorted pairs · D hidden · a program takes one row × C columns.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_formats import as_bf16
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

TILE, WARPS = 512, 2  # measured on an H200


@triton.jit(do_not_specialize=["num_parts"])  # or steps of other sizes would wait for their own compilation
def _combine(
    parts_ptr, places_ptr, shared_ptr, out_ptr, num_parts, SLOTS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    tiles: tl.constexpr = (WIDTH + TILE - 1) // TILE
    row = (tl.program_id(0) // tiles).to(tl.int64)
    column_C = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    inside_C = column_C < WIDTH
    total_C = tl.zeros((TILE,), tl.float32)
    for slot in tl.static_range(SLOTS):
        place = tl.load(places_ptr + row * SLOTS + slot).to(tl.int64)
        # a part that is left out counts as +0, which changes no sum that began with +0; one that does not exist, as NaN
        there = (place >= 0) & (place < num_parts)
        absent = tl.where(place < num_parts, 0.0, float("nan"))
        part_C = tl.load(parts_ptr + place * WIDTH + column_C, mask=column_C < tl.where(there, WIDTH, 0), other=absent)
        total_C += part_C.to(tl.float32)
    if SHARED:
        total_C += tl.load(shared_ptr + row * WIDTH + column_C, mask=inside_C, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column_C, as_bf16(total_C), mask=inside_C)


def combine(parts_PD: Tensor, places_TX: Tensor, shared_TD: Tensor | None) -> Tensor:
    """Σ over slots of the parts at `places_TX` (int32; negative: none), then the shared expert's row: bfloat16 [T, D].

    A place beyond the parts makes its row NaN; nothing is read there.
    """
    rows, width = places_TX.shape[0], parts_PD.shape[1]
    assert parts_PD.dtype == torch.bfloat16 and parts_PD.is_contiguous() and width % 8 == 0, "parts are bfloat16 rows"
    assert places_TX.dtype == torch.int32 and places_TX.is_contiguous(), "places are contiguous int32"
    plain = shared_TD is None or (shared_TD.dtype == torch.bfloat16 and shared_TD.is_contiguous())
    assert plain and (shared_TD is None or shared_TD.shape == (rows, width)), "the shared expert's rows are bfloat16"
    out_TD = parts_PD.new_empty(rows, width)
    if rows:
        tile = min(TILE, triton.next_power_of_2(width))
        _combine[(triton.cdiv(width, tile) * rows,)](
            parts_PD, places_TX, shared_TD, out_TD, len(parts_PD), SLOTS=places_TX.shape[1], WIDTH=width, TILE=tile,
            SHARED=shared_TD is not None, num_warps=WARPS, **OVERLAP,
        )  # fmt: skip
    return out_TD
