"""Attention over listed cache rows, in Triton: any number of heads, every row format, also under the interpreter
(whose products know no bf16, so it multiplies the same numbers as float32).

One program takes one query row and a fixed share of its key slots, in blocks of BLOCK slots in list order. Even and odd
dims are kept apart, so that a pair of FP4 codes, FP8 codes or rope dims is one element of two tiles.
Shares (`splits`) are part of the arithmetic: equal splits give equal bits whatever the batch.

Legend: T rows · H heads · K head dim · P = K/2 pairs · F rope frequencies · W, S slots · A, B, R store · N splits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.ops.sparse_attention import row_kind

LOG2E = 1.4426950408889634
BLOCK = 32


def sparse_attention(
    q_THK: Tensor,
    window_ABR: Tensor,
    window_rows_TW: Tensor,
    selected_ABR: Tensor | None,
    selected_rows_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
    rope_T2F: Tensor,
    splits: int = 1,
) -> Tensor:
    """[T, H, K] bf16; deepinfer.ops.sparse_attention says what is computed. bf16 q and plain rows, float32 sink and rope."""
    rows, heads, head_dim = q_THK.shape
    none = selected_ABR is None or selected_rows_TS is None
    selected_ABR = window_ABR if selected_ABR is None else selected_ABR
    selected_rows_TS = window_rows_TW[:, :0] if selected_rows_TS is None else selected_rows_TS
    for store_ABR, rows_TJ in ((window_ABR, window_rows_TW), (selected_ABR, selected_rows_TS)):
        assert store_ABR.dtype in (torch.uint8, torch.bfloat16), "a store holds packed bytes or bf16 numbers"
        assert store_ABR.stride(2) == 1, "the bytes of a row follow each other"
        assert rows_TJ.dtype == torch.int32 and rows_TJ.shape[1] % BLOCK == 0, (
            f"lists of int32, whole blocks of {BLOCK}"
        )
        assert none or rows_TJ.stride(1) == 1, "the slots of a list follow each other"
    assert q_THK.dtype == torch.bfloat16 and q_THK.is_contiguous(), "q is contiguous bf16"
    assert sink_H.dtype == rope_T2F.dtype == torch.float32 and rope_T2F.is_contiguous(), "sink and rope are float32"
    out_THK = torch.empty_like(q_THK)
    if not rows:
        return out_THK
    partial = out_THK if splits == 1 else q_THK.new_empty((rows, splits, heads, head_dim + 2), dtype=torch.float32)
    _attend[(rows, splits)](
        q_THK.view(torch.int32), _words(window_ABR), window_rows_TW, _words(selected_ABR), selected_rows_TS,
        sink_H, rope_T2F, out_THK.view(torch.int32) if splits == 1 else partial, scale * LOG2E,
        *_places(window_ABR), window_rows_TW.stride(0), *_places(selected_ABR), selected_rows_TS.stride(0),
        HEADS=heads, PADDED=max(16, triton.next_power_of_2(heads)), PAIRS=head_dim // 2,
        FREQUENCIES=rope_T2F.shape[2], WINDOW=window_rows_TW.shape[1],
        SELECTED=selected_rows_TS.shape[1], WINDOW_KIND=row_kind(window_ABR, head_dim),
        SELECTED_KIND=row_kind(selected_ABR, head_dim), SPLITS=splits, BLOCK=BLOCK,
        OPERAND=tl.bfloat16 if q_THK.is_cuda else tl.float32, num_warps=8, num_stages=1,
    )  # fmt: skip
    if splits > 1:
        _merge[(rows, heads)](partial, sink_H, rope_T2F, out_THK.view(torch.int32), HEADS=heads, PAIRS=head_dim // 2,
                              FREQUENCIES=rope_T2F.shape[2], SPLITS=splits, num_warps=2)  # fmt: skip
    return out_THK


def _words(store_ABR: Tensor) -> Tensor:
    """The store as its pairs of numbers are read: 4 bytes of plain rows, 2 of FP8 codes, 1 of FP4 codes."""
    return store_ABR.view(torch.int32) if store_ABR.dtype == torch.bfloat16 else store_ABR


def _places(store_ABR: Tensor) -> tuple[int, int, int]:
    """Rows of a block, and the strides of blocks and rows in elements of `_words`."""
    pair = 2 if store_ABR.dtype == torch.bfloat16 else 1
    assert store_ABR.stride(0) % pair == store_ABR.stride(1) % pair == 0, "rows begin at an even number"
    return store_ABR.shape[1], store_ABR.stride(0) // pair, store_ABR.stride(1) // pair


@triton.jit
def _e4m3(code):
    """float32 of E4M3 bytes: their bits moved into place, then the difference of the exponents' biases."""
    wide = code.to(tl.int32)
    small = ((wide & 0x7F) << 20) | ((wide & 0x80) << 24)
    return small.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120


@triton.jit
def _e2m1(code):
    small = ((code & 7) << 22) | ((code & 8) << 28)
    return small.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126


@triton.jit
def _keys(store, at, visible, PAIRS: tl.constexpr, KIND: tl.constexpr, OPERAND: tl.constexpr):
    """Even and odd dims [BLOCK, PAIRS] of the rows at `at`, OPERAND; zeros where not visible."""
    pair = tl.arange(0, PAIRS)[None, :]
    seen = visible[:, None]
    if KIND == "plain":
        words = tl.load(store + at[:, None] + pair, mask=seen, other=0)
        even, odd = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    elif KIND == "window":
        codes = tl.load((store + at[:, None]).to(tl.pointer_type(tl.uint16)) + pair, mask=seen, other=0).to(tl.int32)
        byte = tl.load(store + at[:, None] + 2 * PAIRS + pair // 16, mask=seen, other=0).to(tl.int32)
        power = tl.where(byte == 0, 0x00400000, byte << 23)  # 2^-127 is subnormal, 255 becomes infinite
        power = power.to(tl.float32, bitcast=True)
        even, odd = _e4m3(codes & 0xFF) * power, _e4m3(codes >> 8) * power
    else:
        codes = tl.load(store + at[:, None] + pair, mask=seen, other=0).to(tl.int32)
        byte = tl.load(store + at[:, None] + PAIRS + pair // 8, mask=seen, other=0)
        group = tl.where((byte & 0x7F) == 0x7F, float("nan"), _e4m3(byte))
        even, odd = _e2m1(codes & 15) * group, _e2m1(codes >> 4) * group
    return even.to(OPERAND), odd.to(OPERAND)


@triton.jit
def _turn(even, odd, cos, sin):
    return even * cos - odd * sin, odd * cos + even * sin


@triton.jit
def _rope(rope, row, PAIRS: tl.constexpr, FREQUENCIES: tl.constexpr):
    """Cosines and sines [1, PAIRS] of a row; pairs before the last FREQUENCIES stand still."""
    frequency = tl.arange(0, PAIRS) - (PAIRS - FREQUENCIES)
    turned = frequency >= 0
    cos = tl.load(rope + row * 2 * FREQUENCIES + frequency, mask=turned, other=1.0)
    sin = tl.load(rope + (row * 2 + 1) * FREQUENCIES + frequency, mask=turned, other=0.0)
    return cos[None, :], sin[None, :]


@triton.jit
def _pack(even, odd):
    low = even.to(tl.bfloat16).to(tl.float32).to(tl.int32, bitcast=True)
    high = odd.to(tl.bfloat16).to(tl.float32).to(tl.int32, bitcast=True)
    return ((low >> 16) & 0xFFFF) | (high & -65536)


@triton.jit
def _attend(
    q, window, window_rows, selected, selected_rows, sink, rope, out, scale,
    window_inner, window_outer_stride, window_stride, window_list_stride,
    selected_inner, selected_outer_stride, selected_stride, selected_list_stride,
    HEADS: tl.constexpr, PADDED: tl.constexpr, PAIRS: tl.constexpr, FREQUENCIES: tl.constexpr, WINDOW: tl.constexpr,
    SELECTED: tl.constexpr,
    WINDOW_KIND: tl.constexpr, SELECTED_KIND: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    OPERAND: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, pair, slot = tl.arange(0, PADDED), tl.arange(0, PAIRS), tl.arange(0, BLOCK)
    real = head < HEADS
    words = tl.load(q + row * HEADS * PAIRS + head[:, None] * PAIRS + pair[None, :], mask=real[:, None], other=0)
    cos, sin = _rope(rope, row, PAIRS, FREQUENCIES)
    even, odd = (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)
    even, odd = _turn(even, odd, cos, sin)
    q_even, q_odd = even.to(tl.bfloat16).to(OPERAND), odd.to(tl.bfloat16).to(OPERAND)
    peak = tl.load(sink + head, mask=real, other=0.0) * 1.4426950408889634
    mass = tl.where(split == 0, 1.0, 0.0) + tl.zeros((PADDED,), tl.float32)
    total_even, total_odd = tl.zeros((PADDED, PAIRS), tl.float32), tl.zeros((PADDED, PAIRS), tl.float32)
    BLOCKS: tl.constexpr = (WINDOW + SELECTED) // BLOCK
    for block in range(split * BLOCKS // SPLITS, (split + 1) * BLOCKS // SPLITS):
        if block * BLOCK < WINDOW:
            number = tl.load(window_rows + row * window_list_stride + block * BLOCK + slot)
            at = (number // window_inner).to(tl.int64) * window_outer_stride + number % window_inner * window_stride
            k_even, k_odd = _keys(window, at, number >= 0, PAIRS, WINDOW_KIND, OPERAND)
        else:
            number = tl.load(selected_rows + row * selected_list_stride + block * BLOCK - WINDOW + slot)
            at = (number // selected_inner).to(
                tl.int64
            ) * selected_outer_stride + number % selected_inner * selected_stride
            k_even, k_odd = _keys(selected, at, number >= 0, PAIRS, SELECTED_KIND, OPERAND)
        logits = tl.dot(q_odd, tl.trans(k_odd), tl.dot(q_even, tl.trans(k_even)))
        logits = tl.where((number >= 0)[None, :], logits * scale, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, 1))
        weights, fade = tl.exp2(logits - higher[:, None]), tl.exp2(peak - higher)
        mass, peak = mass * fade + tl.sum(weights, 1), higher
        weights = weights.to(tl.bfloat16).to(OPERAND)
        total_even = tl.dot(weights, k_even, total_even * fade[:, None])
        total_odd = tl.dot(weights, k_odd, total_odd * fade[:, None])
    if SPLITS == 1:
        even, odd = _turn(total_even / mass[:, None], total_odd / mass[:, None], cos, -sin)
        place = out + row * HEADS * PAIRS + head[:, None] * PAIRS + pair[None, :]
        tl.store(place, _pack(even, odd), mask=real[:, None])
    else:
        place = out + ((row * SPLITS + split) * HEADS + head) * (2 * PAIRS + 2)
        tl.store(place[:, None] + pair[None, :], total_even, mask=real[:, None])
        tl.store(place[:, None] + PAIRS + pair[None, :], total_odd, mask=real[:, None])
        tl.store(place + 2 * PAIRS, peak, mask=real)
        tl.store(place + 2 * PAIRS + 1, mass, mask=real)


@triton.jit
def _merge(
    partial, sink, rope, out,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, FREQUENCIES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The splits of one row and head, added in their order."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, PAIRS)
    peak, mass = tl.load(sink + head) * 1.4426950408889634, 0.0
    total_even, total_odd = tl.zeros((PAIRS,), tl.float32), tl.zeros((PAIRS,), tl.float32)
    for split in tl.static_range(SPLITS):
        place = partial + ((row * SPLITS + split) * HEADS + head) * (2 * PAIRS + 2)
        part_peak, part_mass = tl.load(place + 2 * PAIRS), tl.load(place + 2 * PAIRS + 1)
        higher = tl.maximum(peak, part_peak)
        fade, part_fade = tl.exp2(peak - higher), tl.exp2(part_peak - higher)
        mass, peak = mass * fade + part_mass * part_fade, higher
        total_even = total_even * fade + tl.load(place + pair) * part_fade
        total_odd = total_odd * fade + tl.load(place + PAIRS + pair) * part_fade
    frequency = pair - (PAIRS - FREQUENCIES)
    turned = frequency >= 0
    cos = tl.load(rope + row * 2 * FREQUENCIES + frequency, mask=turned, other=1.0)
    sin = tl.load(rope + (row * 2 + 1) * FREQUENCIES + frequency, mask=turned, other=0.0)
    even, odd = _turn(total_even / mass, total_odd / mass, cos, -sin)
    tl.store(out + (row * HEADS + head) * PAIRS + pair, _pack(even, odd))
