"""Chosen entries as row numbers of the blocks' stores, one launch. Twin: deepinfer/ops/stored_places.py.

Legend: T rows · E entries chosen · S sequences · B blocks of a sequence.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

PIECE = 512  # entries of a program


@triton.jit
def _entry_rows(
    entry_ptr, tables_ptr, sequence_ptr, out_ptr, entries, blocks, PER_BLOCK: tl.constexpr, PIECE: tl.constexpr
):
    wait_for_earlier_launches()
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    there = at < entries
    entry = tl.load(entry_ptr + row * entries + at, mask=there, other=-1)
    seen = entry >= 0
    table_ptr = tables_ptr + tl.load(sequence_ptr + row).to(tl.int64) * blocks
    block = tl.load(table_ptr + entry // PER_BLOCK, mask=seen, other=0)
    tl.store(out_ptr + row * entries + at, tl.where(seen, block * PER_BLOCK + entry % PER_BLOCK, -1), mask=there)


def entry_rows(entry_TE: Tensor, tables_SB: Tensor, sequence_T: Tensor, per_block: int) -> Tensor:
    """As the twin; everything int32 and contiguous."""
    numbers = (entry_TE, tables_SB, sequence_T)
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in numbers), "entries and tables are contiguous int32"
    out_TE = torch.empty_like(entry_TE)
    rows, entries = entry_TE.shape
    if out_TE.numel():
        _entry_rows[(rows, triton.cdiv(entries, PIECE))](
            *numbers, out_TE, entries, tables_SB.shape[1], PER_BLOCK=per_block, PIECE=PIECE, num_warps=4, **OVERLAP
        )
    return out_TE
