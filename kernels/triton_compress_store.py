"""Compressed main keys: pooling of pairs, RMS norm, rotation, FP4 packing and the write to the main rows, in one pass.

Legend: T rows of the step · E entries · K key dims = G groups of P = 8 pairs · F rope frequencies ·
[A, B, R = K / 2 + K / 16] a store · [A, S, 2K] tails.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_arithmetic import exp_of_negative, reciprocal
from deepinfer.kernels.triton_formats import (
    E2M1_UNIT,
    e4m3_values,
    high_half,
    low_half,
    main_scale,
    pair_of_bf16,
    pair_of_e2m1,
)
from deepinfer.kernels.triton_grids import greatest_of_pairs
from deepinfer.kernels.triton_norm_rope import (
    angles,
    check_key_facts,
    check_store,
    check_width,
    norm_pairs,
    rotated_pairs,
    row_starts,
    weight_pairs,
)
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

GROUP = 16
TILE_ROWS, WARPS = {1: 2, 2: 1}, 1  # by ratio; measured on an H200
MOST_PROGRAMS = 132 * 16  # that an H200 holds at once


@triton.jit
def _halves(pair, WIDE: tl.constexpr):
    """Even and odd columns (float32) of pairs of float32 (`WIDE`, int64) or of bfloat16 (int32)."""
    if WIDE:
        even = pair.to(tl.int32).to(tl.float32, bitcast=True)
        odd = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        even, odd = low_half(pair), high_half(pair)
    return even, odd


@triton.jit
def _token(ptr, mask, HALF: tl.constexpr, WIDE: tl.constexpr):
    """Even and odd values, even and odd gates of a token."""
    even, odd = _halves(tl.load(ptr, mask=mask, other=0), WIDE)
    even_gate, odd_gate = _halves(tl.load(ptr + HALF, mask=mask, other=0), WIDE)
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
def _store_keys(key_RGP, start_R, kept_R, store_ptr, GROUPS: tl.constexpr):
    """Pack rotated keys and write them where their rows begin."""
    group_G = tl.arange(0, GROUPS)
    even_RGP, odd_RGP = low_half(key_RGP), high_half(key_RGP)
    scale_RG = main_scale(greatest_of_pairs(key_RGP, 2))
    inverse_RG1 = (reciprocal(e4m3_values(scale_RG)) * E2M1_UNIT)[:, :, None]
    bytes_RGP = pair_of_e2m1(even_RGP * inverse_RG1, odd_RGP * inverse_RG1)
    pair_1GP = (group_G[:, None] * 8 + tl.arange(0, 8)[None, :])[None]
    tl.store(store_ptr + start_R[:, None, None] + pair_1GP, bytes_RGP, mask=kept_R[:, None, None])
    tl.store(store_ptr + start_R[:, None] + GROUPS * 8 + group_G[None, :], scale_RG, mask=kept_R[:, None])


@triton.jit(do_not_specialize=["num_entries"])  # or steps of other sizes would wait for their own compilation
def _store_pairs(
    halves_ptr, newest_ptr, partner_ptr, tail_ptr, weight_ptr, rope_ptr, store_ptr, rows_ptr, latent_ptr,
    num_entries, halves_stride, tail_block_stride, tail_rows, block_stride, eps,
    BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr,
    HAS_TAIL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Entries of pairs of tokens: a tile a program."""
    wait_for_earlier_launches()
    row_R = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there_R = row_R < num_entries
    start_R, kept_R = row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS, GROUPS * 9)
    half: tl.constexpr = GROUPS * 8
    pair_1GP = (tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :])[None]
    newest_R = tl.load(newest_ptr + row_R, mask=there_R, other=0)
    newest_ptr_RGP = halves_ptr + newest_R.to(tl.int64)[:, None, None] * halves_stride + pair_1GP
    partner_R = tl.load(partner_ptr + row_R, mask=there_R, other=0)
    even_RGP, odd_RGP = _pooled_pairs(
        halves_ptr, tail_ptr, newest_ptr_RGP, partner_R, there_R, pair_1GP, halves_stride, tail_block_stride,
        tail_rows, half, HAS_TAIL, WIDE,
    )  # fmt: skip
    latent_RGP = norm_pairs(even_RGP, odd_RGP, weight_pairs(weight_ptr, GROUPS, 8), eps, GROUPS, 8)
    latent_ptr_RGP = latent_ptr + row_R.to(tl.int64)[:, None, None] * half + pair_1GP
    tl.store(latent_ptr_RGP, latent_RGP, mask=there_R[:, None, None])
    cos_RGP, sin_RGP, turned_RGP = angles(rope_ptr, row_R, there_R, GROUPS, 8, FREQUENCIES)
    _store_keys(rotated_pairs(latent_RGP, cos_RGP, sin_RGP, turned_RGP), start_R, kept_R, store_ptr, GROUPS)


@triton.jit
def _newest(newest_ptr, tile, num_entries, ROWS: tl.constexpr):
    """Rows of a tile's tokens; -1 where there is none."""
    row_R = tile * ROWS + tl.arange(0, ROWS)
    return tl.load(newest_ptr + row_R, mask=row_R < num_entries, other=-1)


@triton.jit
def _values(halves_ptr, newest_R, halves_stride, GROUPS: tl.constexpr):
    pair_1GP = (tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :])[None]
    ptr_RGP = halves_ptr + tl.maximum(newest_R, 0).to(tl.int64)[:, None, None] * halves_stride + pair_1GP
    return tl.load(ptr_RGP, mask=(newest_R >= 0)[:, None, None], other=0)


@triton.jit(do_not_specialize=["num_entries"])  # or steps of other sizes would wait for their own compilation
def _store_tokens(
    halves_ptr, newest_ptr, weight_ptr, rope_ptr, store_ptr, rows_ptr, latent_ptr,
    num_entries, halves_stride, block_stride, eps,
    BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, FREQUENCIES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Entries of single tokens: a program takes tile after tile, the next one's values on their way while it computes."""
    wait_for_earlier_launches()
    weight_1GP = weight_pairs(weight_ptr, GROUPS, 8)
    half: tl.constexpr = GROUPS * 8
    pair_1GP = (tl.arange(0, GROUPS)[:, None] * 8 + tl.arange(0, 8)[None, :])[None]
    tile, step = tl.program_id(0), tl.num_programs(0)
    x_RGP = _values(halves_ptr, _newest(newest_ptr, tile, num_entries, ROWS), halves_stride, GROUPS)
    newest_R = _newest(newest_ptr, tile + step, num_entries, ROWS)
    while tile * ROWS < num_entries:
        next_RGP = _values(halves_ptr, newest_R, halves_stride, GROUPS)
        newest_R = _newest(newest_ptr, tile + 2 * step, num_entries, ROWS)
        row_R = tile * ROWS + tl.arange(0, ROWS)
        there_R = row_R < num_entries
        even_RGP, odd_RGP = _halves(x_RGP, WIDE)
        start_R, kept_R = row_starts(rows_ptr, row_R, there_R, block_stride, BLOCK_ROWS, GROUPS * 9)
        cos_RGP, sin_RGP, turned_RGP = angles(rope_ptr, row_R, there_R, GROUPS, 8, FREQUENCIES)
        latent_RGP = norm_pairs(even_RGP, odd_RGP, weight_1GP, eps, GROUPS, 8)
        latent_ptr_RGP = latent_ptr + row_R.to(tl.int64)[:, None, None] * half + pair_1GP
        tl.store(latent_ptr_RGP, latent_RGP, mask=there_R[:, None, None])
        _store_keys(rotated_pairs(latent_RGP, cos_RGP, sin_RGP, turned_RGP), start_R, kept_R, store_ptr, GROUPS)
        x_RGP = next_RGP
        tile += step


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
    width, frequencies = len(weight_K), rope_E2F.shape[2]
    check_width(width, frequencies, GROUP)
    check_key_facts(weight_K, rope_E2F, rows_E, width, frequencies)
    check_store(store_ABR, width // 2 + width // GROUP, alignment_bytes=16)
    paired, entries = partner_E is not None, len(rows_E)
    _check_halves(halves_TX, (newest_E, partner_E) if paired else (newest_E,), entries, tail_ASX, width)
    latent_EK = halves_TX.new_empty(entries, width, dtype=torch.bfloat16)
    if entries:
        halves = halves_TX[:, : halves_TX.shape[1] // 2 * 2].view(_pairs(halves_TX.dtype))
        tiles = triton.cdiv(entries, TILE_ROWS[1 + paired])
        rest = (weight_K.view(torch.int32), rope_E2F, store_ABR, rows_E, latent_EK.view(torch.int32), entries)
        sizes = {
            "BLOCK_ROWS": store_ABR.shape[1], "ROWS": TILE_ROWS[1 + paired], "GROUPS": width // GROUP,
            "FREQUENCIES": frequencies, "WIDE": halves.dtype == torch.int64, "num_warps": WARPS, "enable_fp_fusion": False,
        }  # fmt: skip
        if paired:
            tail, *steps = (None, 0, 1) if tail_ASX is None else (tail_ASX.view(torch.int64), *_steps(tail_ASX))
            _store_pairs[(tiles,)](
                halves, newest_E, partner_E, tail, *rest, halves.stride(0), *steps, store_ABR.stride(0), eps,
                HAS_TAIL=tail is not None, **sizes, **OVERLAP,
            )  # fmt: skip
        else:
            _store_tokens[(min(tiles, MOST_PROGRAMS),)](
                halves, newest_E, *rest, halves.stride(0), store_ABR.stride(0), eps, **sizes, **OVERLAP
            )
    return latent_EK


def _pairs(dtype: torch.dtype) -> torch.dtype:
    """What two numbers fit in."""
    return torch.int64 if dtype == torch.float32 else torch.int32


def _steps(tail_ASX: Tensor) -> tuple[int, int]:
    """Pairs of a block of tails and rows of it."""
    return tail_ASX.stride(0) // 2, tail_ASX.shape[1]


def _check_halves(
    halves_TX: Tensor, numbers: Sequence[Tensor], entries: int, tail_ASX: Tensor | None, width: int
) -> None:
    size = halves_TX.element_size()
    assert halves_TX.dtype in (torch.bfloat16, torch.float32), "values and gates are bfloat16 or float32"
    assert halves_TX.stride(1) == 1 and halves_TX.shape[1] >= width * len(numbers), (
        "a row holds its value, then its gate"
    )
    assert halves_TX.stride(0) * size % 16 == 0 and halves_TX.data_ptr() % 16 == 0, "rows begin at 16 bytes"
    for of_entries in numbers:
        assert of_entries.dtype == torch.int32 and of_entries.shape == (entries,), "row numbers are int32, one an entry"
        assert of_entries.is_contiguous(), "row numbers are contiguous"
    if tail_ASX is not None:
        assert tail_ASX.dtype == torch.float32 and tail_ASX.stride()[1:] == (2 * width, 1), "tails are float32 rows"
        assert tail_ASX.shape[1] and tail_ASX.shape[2] == 2 * width, (
            f"a block of tails has rows, {2 * width} numbers each"
        )
        assert tail_ASX.stride(0) % 4 == 0 and tail_ASX.data_ptr() % 16 == 0, "tails begin at 16 bytes"
