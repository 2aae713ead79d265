"""Compressed main keys: pooling of pairs, RMS norm, rotation, FP4 packing and the write to the main rows, in one pass.

Legend: T rows of the step · E entries · K = 512 key dims = G groups of P = 8 pairs · F = 32 rope frequencies ·
[A, B, R = 288] a store · [A, S, 2K] tails.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import exp_of_negative, reciprocal
from deepinfer.kernels.triton_formats import (
    e4m3_values,
    high_half,
    low_half,
    magnitude_bits,
    main_scale,
    pair_of_bf16,
    pair_of_e2m1,
)
from deepinfer.kernels.triton_norm_rope import check_key_facts, check_store, norm_pairs, rotated_pairs, row_starts
from torch import Tensor

ROW_BYTES, WIDTH, FREQUENCIES, GROUP = 288, 512, 32, 16
TILE_ROWS, WARPS = {1: 4, 2: 1}, 1  # by ratio; measured on an H200


@triton.jit
def _pair(ptr, mask, WIDE: tl.constexpr):
    """Even and odd columns (float32) of pairs of float32 (`WIDE`, int64) or of bfloat16 (int32)."""
    pair = tl.load(ptr, mask=mask, other=0)
    if WIDE:
        even = pair.to(tl.int32).to(tl.float32, bitcast=True)
        odd = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        even, odd = low_half(pair), high_half(pair)
    return even, odd


@triton.jit
def _token(ptr, mask, HALF: tl.constexpr, WIDE: tl.constexpr):
    """Even and odd values, even and odd gates of a token."""
    even, odd = _pair(ptr, mask, WIDE)
    even_gate, odd_gate = _pair(ptr + HALF, mask, WIDE)
    return even, odd, even_gate, odd_gate


@triton.jit
def _pooled(value, gate, second_value, second_gate):
    """Σ softmax(gate) · value over the two tokens, column by column. The greater gate's weight is exp(0)."""
    lesser = exp_of_negative(-tl.abs(gate - second_gate))
    first = gate >= second_gate
    total = tl.where(first, value, second_value) + lesser * tl.where(first, second_value, value)
    return total * reciprocal(1.0 + lesser)


@triton.jit
def _pooled_pairs(
    halves_ptr, tail_ptr, second_ptr, partner_R, there_R, pair_1GP, halves_stride, tail_block_stride, tail_rows,
    HALF: tl.constexpr, HAS_TAIL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Even and odd columns of pooled pairs of tokens: the first of the step or the tails, the second at `second_ptr`."""
    here_R11 = (there_R & (partner_R >= 0))[:, None, None]
    first_ptr = halves_ptr + tl.maximum(partner_R, 0).to(tl.int64)[:, None, None] * halves_stride + pair_1GP
    even, odd, even_gate, odd_gate = _token(first_ptr, here_R11, HALF, WIDE)
    if HAS_TAIL:
        place_R = tl.maximum(-1 - partner_R, 0)
        start_R = (place_R // tail_rows).to(tl.int64) * tail_block_stride + place_R % tail_rows * (2 * HALF)
        waits_R11 = (there_R & (partner_R < 0))[:, None, None]
        tail = _token(tail_ptr + start_R[:, None, None] + pair_1GP, waits_R11, HALF, True)
        even, odd = tl.where(waits_R11, tail[0], even), tl.where(waits_R11, tail[1], odd)
        even_gate, odd_gate = tl.where(waits_R11, tail[2], even_gate), tl.where(waits_R11, tail[3], odd_gate)
    second = _token(second_ptr, there_R[:, None, None], HALF, WIDE)
    even, odd = _pooled(even, even_gate, second[0], second[2]), _pooled(odd, odd_gate, second[1], second[3])
    if not WIDE:
        pooled = pair_of_bf16(even, odd)
        even, odd = low_half(pooled), high_half(pooled)
    return even, odd


@triton.jit
def _compress_store(
    halves_ptr, newest_ptr, partner_ptr, tail_ptr, weight_ptr, rope_ptr, store_ptr, rows_ptr, latent_ptr,
    num_entries, halves_stride, tail_block_stride, tail_rows, block_stride, block_rows, eps,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr,
    PAIRED: tl.constexpr, HAS_TAIL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_entries
    half: tl.constexpr = GROUPS * 8
    group_G = tl.arange(0, GROUPS)
    pair_1GP = (group_G[:, None] * 8 + tl.arange(0, 8)[None, :])[None]
    newest_R = tl.load(newest_ptr + row_R, mask=there_R, other=0)
    newest_ptr_RGP = halves_ptr + newest_R.to(tl.int64)[:, None, None] * halves_stride + pair_1GP
    if PAIRED:
        partner_R = tl.load(partner_ptr + row_R, mask=there_R, other=0)
        even_RGP, odd_RGP = _pooled_pairs(
            halves_ptr, tail_ptr, newest_ptr_RGP, partner_R, there_R, pair_1GP, halves_stride, tail_block_stride,
            tail_rows, half, HAS_TAIL, WIDE,
        )  # fmt: skip
    else:
        even_RGP, odd_RGP = _pair(newest_ptr_RGP, there_R[:, None, None], WIDE)
    latent_RGP = norm_pairs(even_RGP, odd_RGP, weight_ptr, eps, GROUPS, 8)
    latent_ptr_RGP = latent_ptr + row_R.to(tl.int64)[:, None, None] * half + pair_1GP
    tl.store(latent_ptr_RGP, latent_RGP, mask=there_R[:, None, None])
    key_RGP = rotated_pairs(latent_RGP, rope_ptr, row_R, there_R, GROUPS, 8, FREQUENCIES)
    even_RGP, odd_RGP = low_half(key_RGP), high_half(key_RGP)
    scale_RG = main_scale(tl.max(tl.maximum(magnitude_bits(even_RGP), magnitude_bits(odd_RGP)), 2))
    inverse_RG1 = reciprocal(e4m3_values(scale_RG))[:, :, None]
    bytes_RGP = pair_of_e2m1(even_RGP * inverse_RG1, odd_RGP * inverse_RG1).to(tl.uint8)
    start_R, kept_R = row_starts(rows_ptr, row_R, there_R, block_rows, block_stride, GROUPS * 9)
    tl.store(store_ptr + start_R[:, None, None] + pair_1GP, bytes_RGP, mask=kept_R[:, None, None])
    tl.store(store_ptr + start_R[:, None] + half + group_G[None, :], scale_RG, mask=kept_R[:, None])


def compress_store(
    halves_TX: Tensor,
    newest_E: Tensor,
    weight_K: Tensor,
    eps: float,
    rope_E2F: Tensor,
    store_ABR: Tensor,
    rows_E: Tensor,
    *,
    partner_E: Tensor | None = None,
    tail_ASX: Tensor | None = None,
) -> Tensor:
    """Main keys of completed entries into rows `rows_E`; returns the normed latents, bfloat16 [E, K]. As the twin, but that
    all row numbers are int32, halves are bfloat16 or float32 and tails float32.
    """
    check_key_facts(weight_K, rope_E2F, rows_E, WIDTH, FREQUENCIES)
    check_store(store_ABR, ROW_BYTES, alignment_bytes=16)
    paired, entries = partner_E is not None, len(rows_E)
    _check_halves(halves_TX, (newest_E, partner_E) if paired else (newest_E,), entries, tail_ASX)
    latent_EK = halves_TX.new_empty(entries, WIDTH, dtype=torch.bfloat16)
    if entries:
        pair, wide = (torch.int64, True) if halves_TX.dtype == torch.float32 else (torch.int32, False)
        tile_rows = TILE_ROWS[1 + paired]
        _compress_store[(triton.cdiv(entries, tile_rows),)](
            halves_TX[:, : halves_TX.shape[1] // 2 * 2].view(pair), newest_E, partner_E,
            None if tail_ASX is None else tail_ASX.view(torch.int64), weight_K.view(torch.int32), rope_E2F, store_ABR,
            rows_E, latent_EK.view(torch.int32), entries, halves_TX.stride(0) // 2,
            0 if tail_ASX is None else tail_ASX.stride(0) // 2, 1 if tail_ASX is None else tail_ASX.shape[1],
            store_ABR.stride(0), store_ABR.shape[1], eps, ROWS=tile_rows, GROUPS=WIDTH // GROUP,
            FREQUENCIES=FREQUENCIES, PAIRED=paired, HAS_TAIL=tail_ASX is not None, WIDE=wide,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return latent_EK


def _check_halves(halves_TX: Tensor, numbers: Sequence[Tensor], entries: int, tail_ASX: Tensor | None) -> None:
    width, size = WIDTH * len(numbers), halves_TX.element_size()
    assert halves_TX.dtype in (torch.bfloat16, torch.float32), "values and gates are bfloat16 or float32"
    assert halves_TX.stride(1) == 1 and halves_TX.shape[1] >= width, "a row holds its value, then its gate"
    assert halves_TX.stride(0) * size % 16 == 0 and halves_TX.data_ptr() % 16 == 0, "rows begin at 16 bytes"
    for of_entries in numbers:
        assert of_entries.dtype == torch.int32 and of_entries.shape == (entries,), "row numbers are int32, one an entry"
        assert of_entries.is_contiguous(), "row numbers are contiguous"
    if tail_ASX is not None:
        assert tail_ASX.dtype == torch.float32 and tail_ASX.stride()[1:] == (2 * WIDTH, 1), "tails are float32 rows"
        assert tail_ASX.stride(0) % 4 == 0 and tail_ASX.data_ptr() % 16 == 0, "tails begin at 16 bytes"
