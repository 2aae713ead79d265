"""Attention of 64 heads of 512 dims over listed cache rows on Hopper, in CUDA C++: see cuda_sparse_attention.cu.

Every query row is one thread block's from first to last key, in list order, so its bits depend on its own keys alone. Where
rows are too few for the device, eight blocks share a row: one block multiplies queries by keys where another sums values, but
every number comes from the same products in the same order, so the bits stay. Launches overlap with what runs before them.

Legend: T rows · H heads · K head dim · F rope frequencies · W, S slots of a list · A, B, R blocks, rows, bytes of a store.
"""

import ctypes
from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of, num_multiprocessors
from torch import Tensor

from deepinfer.ops.sparse_attention import row_kind

HEADS, HEAD_DIM, FREQUENCIES, TILE = 64, 512, 32, 64
FORMATS = {"plain": 0, "window": 1, "main": 2}
LOG2E = 1.4426950408889634
SHARED_BYTES = 3 * 65536 + 2 * 8192 + 2 * 2048 + 512 + 16 + 16 + 512 + 240
SPREAD, MOST_SPREAD_SLOTS = 8, 640  # thread blocks that share a row; shared memory ends the second
SHARE_BYTES = 8192 + 1024  # what they tell each other of a block of keys
MOST_SELECTED_SLOTS = 32 * TILE  # a lane of a warp looks at each block


def sparse_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rope_T2F: Tensor,
    *,
    spread: bool | None = None,
) -> Tensor:
    """[T, H, K] bf16; deepinfer.ops.sparse_attention says what is computed.

    Lists of whole blocks of 64 slots, hidden ones of the selected list at its end. Both stores packed, or both bf16. FP8
    scales from 2^32 on count as infinite, and keys below 2^-109 may lose bits. `spread`: several blocks a row; None: where
    rows are few.
    """
    if selected_ABR is None or selected_rows_TS is None:
        selected_ABR, selected_rows_TS = window_ABR, window_rows_TW[:, :0]
    _check(q_THK, sink_H, rope_T2F)
    kinds = row_kind(window_ABR, HEAD_DIM), row_kind(selected_ABR, HEAD_DIM)
    assert (kinds[0] == "plain") == (kinds[1] == "plain"), "both stores are packed, or both hold bf16"
    stores = [_store(window_ABR, window_rows_TW), _store(selected_ABR, selected_rows_TS)]
    rows, window = window_rows_TW.shape
    _check_lists(len(q_THK), window_rows_TW, selected_rows_TS)
    out_THK = torch.empty_like(q_THK)
    if not rows:
        return out_THK
    num_blocks = num_multiprocessors(device_of(q_THK))
    num_slots = window + selected_rows_TS.shape[1]
    can_spread = kinds[0] != "plain" and num_slots <= MOST_SPREAD_SLOTS
    spread = can_spread and rows * SPREAD <= num_blocks if spread is None else spread
    assert can_spread or not spread, f"packed rows and at most {MOST_SPREAD_SLOTS} slots are spread"
    formats = FORMATS[kinds[0]], FORMATS[kinds[1]]
    exchange = q_THK.new_empty(rows * num_slots // TILE * SHARE_BYTES, dtype=torch.uint8) if spread else None
    attend = _kernel(device_of(q_THK), window, selected_rows_TS.shape[1], *formats, spread)
    attend(
        (rows * SPREAD if spread else min(rows, num_blocks),),
        q_THK, *stores[0], *stores[1], window_rows_TW, selected_rows_TS, window_rows_TW.stride(0),
        selected_rows_TS.stride(0), sink_H, rope_T2F, out_THK, rows, scale * LOG2E, exchange,
    )  # fmt: skip
    return out_THK


@cache
def _kernel(device: int, window: int, selected: int, window_format: int, selected_format: int, spread: bool) -> Launch:
    macros = {"WINDOW": window, "SELECTED": selected}
    macros |= {"WINDOW_FORMAT": window_format, "SELECTED_FORMAT": selected_format}
    program = CudaProgram("cuda_sparse_attention.cu", macros)
    if not spread:
        return program.kernel("attend", threads=512, shared_bytes=SHARED_BYTES, overlap=True)
    shared_bytes = SHARED_BYTES + (window + selected) // TILE * 256 + 64
    return program.kernel("attend_spread", threads=512, shared_bytes=shared_bytes, cluster=(SPREAD, 1, 1), overlap=True)


def _check(q_THK: Tensor, sink_H: Tensor, rope_T2F: Tensor) -> None:
    rows = q_THK.shape[0]
    assert q_THK.shape == (rows, HEADS, HEAD_DIM) and q_THK.dtype == torch.bfloat16, "q is bf16 [T, 64, 512]"
    assert q_THK.is_contiguous() and q_THK.data_ptr() % 16 == 0, "q is contiguous and aligned to 16 bytes"
    assert sink_H.shape == (HEADS,) and sink_H.dtype == torch.float32, "one float32 sink a head"
    assert sink_H.is_contiguous(), "sinks are contiguous"
    assert rope_T2F.shape == (rows, 2, FREQUENCIES) and rope_T2F.dtype == torch.float32, "float32 cosines and sines"
    assert rope_T2F.is_contiguous() and rope_T2F.data_ptr() % 16 == 0, "rope is contiguous and aligned to 16 bytes"


def _check_lists(rows: int, window_rows_TW: Tensor, selected_rows_TS: Tensor) -> None:
    assert rows == len(window_rows_TW) == len(selected_rows_TS), (
        "a list of window rows and one of selected rows for each row of q"
    )
    assert window_rows_TW.shape[1] >= TILE, f"a list of window rows has at least {TILE} slots"
    assert selected_rows_TS.shape[1] <= MOST_SELECTED_SLOTS, f"at most {MOST_SELECTED_SLOTS} selected slots"


def _store(store_ABR: Tensor, rows_TJ: Tensor) -> tuple[Tensor, ctypes.c_uint64, int, int, ctypes.c_uint32, int]:
    """Address, bytes from block to block and from row to row, rows of a block, a factor and a shift that divide by them."""
    assert store_ABR.dtype in (torch.uint8, torch.bfloat16), "a store holds packed bytes or bf16"
    item = store_ABR.element_size()
    outer, inner = store_ABR.stride(0) * item, store_ABR.stride(1) * item
    assert store_ABR.shape[0] and store_ABR.shape[1], (
        "a store has a first row, which is read in the place of hidden ones"
    )
    assert store_ABR.stride(2) == 1, "the bytes of a row follow each other"
    assert store_ABR.data_ptr() % 16 == outer % 16 == inner % 16 == 0, "blocks and rows begin at multiples of 16 bytes"
    assert store_ABR.shape[0] * outer < 1 << 36, "a store is smaller than 64 GB: 32 bits count rows' places by 16 bytes"
    assert store_ABR.shape[1] * inner < 1 << 32, "a block of a store is smaller than 4 GB: 32 bits count bytes in it"
    assert rows_TJ.dtype == torch.int32 and rows_TJ.shape[1] % TILE == 0, "lists of int32, in whole blocks of 64 slots"
    assert not rows_TJ.shape[1] or rows_TJ.stride(1) == 1, "the slots of a list follow each other"
    block_rows = store_ABR.shape[1]
    shift = 31 + (block_rows - 1).bit_length()
    factor = ctypes.c_uint32(-(-(1 << shift) // block_rows))
    return store_ABR, ctypes.c_uint64(outer), inner, block_rows, factor, shift
