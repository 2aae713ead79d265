"""The gate that lets a row of the n-gram memory into each stream, and the addition.

A program serves one stream of one row; its numbers stay in registers between the dot products and the addition. Sigmoid
and sums are float32 in an order of their own: results differ from the twin's by rounding.

Legend: T rows · N streams · D hidden in pieces of C.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import reciprocal_rms
from deepinfer.kernels.triton_formats import as_bf16
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

PIECE, WARPS = 1024, 8  # measured on an H200
LEAST = 1e-6


@triton.jit
def _engram_add(
    x_ptr, key_ptr, value_ptr, q_ptr, k_ptr, out_ptr, key_stride, value_stride, eps, least,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    stream, row = tl.program_id(0) % STREAMS, (tl.program_id(0) // STREAMS).to(tl.int64)
    x_start = (row * STREAMS + stream) * WIDTH
    dot_C = tl.zeros((PIECE,), tl.float32)
    x_square_C = tl.zeros((PIECE,), tl.float32)
    key_square_C = tl.zeros((PIECE,), tl.float32)
    pieces, values = (), ()
    for piece in tl.static_range(PIECES):
        column_C = piece * PIECE + tl.arange(0, PIECE)
        inside_C = column_C < WIDTH
        x_C = tl.load(x_ptr + x_start + column_C, mask=inside_C, other=0.0)
        key_C = tl.load(key_ptr + row * key_stride + stream * WIDTH + column_C, mask=inside_C, other=0.0).to(tl.float32)
        q_C = tl.load(q_ptr + stream * WIDTH + column_C, mask=inside_C, other=0.0).to(tl.float32)
        k_C = tl.load(k_ptr + stream * WIDTH + column_C, mask=inside_C, other=0.0).to(tl.float32)
        pieces += (x_C,)
        values += (tl.load(value_ptr + row * value_stride + column_C, mask=inside_C, other=0.0),)
        x_C = x_C.to(tl.float32)
        dot_C += x_C * q_C * key_C * k_C
        x_square_C += x_C * x_C
        key_square_C += key_C * key_C
    scale = reciprocal_rms(tl.sum(x_square_C, 0), WIDTH, eps) * reciprocal_rms(tl.sum(key_square_C, 0), WIDTH, eps)
    dot = tl.sum(dot_C, 0) * scale * (WIDTH**-0.5)
    root = tl.sqrt_rn(tl.maximum(tl.abs(dot), least))
    gate = 1.0 / (1.0 + tl.exp(-tl.where(dot > 0, root, tl.where(dot < 0, -root, dot))))
    for piece in tl.static_range(PIECES):
        column_C = piece * PIECE + tl.arange(0, PIECE)
        inside_C = column_C < WIDTH
        out_C = pieces[piece].to(tl.float32) + gate * values[piece].to(tl.float32)
        tl.store(out_ptr + x_start + column_C, as_bf16(out_C), mask=inside_C)


def engram_add(x_TND: Tensor, key_TND: Tensor, value_TD: Tensor, q_ND: Tensor, k_ND: Tensor, eps: float) -> Tensor:
    """x + gate · value, bfloat16 [T, N, D]. Keys and values may be slices of one product's columns."""
    rows, streams, width = x_TND.shape
    tensors = (x_TND, key_TND, value_TD, q_ND, k_ND)
    assert all(tensor.dtype == torch.bfloat16 and tensor.data_ptr() % 16 == 0 for tensor in tensors), "aligned bfloat16"
    assert x_TND.is_contiguous() and q_ND.is_contiguous() and k_ND.is_contiguous(), "streams and weights are contiguous"
    assert key_TND.stride()[1:] == (width, 1) and value_TD.stride(1) == 1, "a row's keys and value are adjacent numbers"
    assert width % 8 == key_TND.stride(0) % 8 == value_TD.stride(0) % 8 == 0, "rows begin at 16 bytes"
    assert key_TND.shape == x_TND.shape and value_TD.shape == (rows, width), "one key a stream and one value a row"
    assert q_ND.shape == k_ND.shape == (streams, width), "one pair of weights a stream"
    out_TND = torch.empty_like(x_TND)
    if rows:
        piece = min(PIECE, triton.next_power_of_2(width))
        _engram_add[(streams * rows,)](
            x_TND, key_TND, value_TD, q_ND, k_ND, out_TND, key_TND.stride(0), value_TD.stride(0), eps, LEAST,
            STREAMS=streams, WIDTH=width, PIECES=triton.cdiv(width, piece), PIECE=piece, num_warps=WARPS,
            enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out_TND
