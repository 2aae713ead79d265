"""The two ends of a round of drafting, one launch each and a sequence a program. Twins: deepinfer/ops/draft_rows.py.

Legend: S sequences · Q slots of a block · T = S · Q rows · K drafts · W window · F rope frequencies · E fits.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

from deepinfer.ops.decode_rows import SequenceTensors
from deepinfer.ops.draft_rows import DraftRows, DraftShape


@triton.jit
def _draft_rows(
    slots_ptr, going_ptr, tokens_ptr, num_tokens_ptr, length_end_ptr, floor_ptr, rope_ptr, columns, padding_slot,
    newest_ptr, position_ptr, ids_ptr, ropes_ptr, window_ptr,
    PAD: tl.constexpr, SLOTS: tl.constexpr, NOISE: tl.constexpr, WINDOW: tl.constexpr, WINDOWS: tl.constexpr,
    RING: tl.constexpr, ROPE: tl.constexpr, ROPES: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    sequence = tl.program_id(0)
    slot = tl.load(slots_ptr + sequence)
    known = tl.load(num_tokens_ptr + slot)
    wants = (tl.load(going_ptr + sequence) != 0) & (known + 1 < tl.load(length_end_ptr + slot)) & (slot != padding_slot)
    position = tl.where(wants, known - 1, 0)
    newest = tl.where(wants, tl.load(tokens_ptr + slot * columns + PAD + position), -1)
    tl.store(newest_ptr + sequence, newest)
    tl.store(position_ptr + sequence, position.to(tl.int64))
    at_W, angle = tl.arange(0, WINDOWS), tl.arange(0, ROPES)
    wanted_W = position - WINDOW + at_W
    seen_W = wanted_W >= tl.load(floor_ptr + slot)
    row_W = tl.where(seen_W, slot.to(tl.int32) * RING + tl.maximum(wanted_W, 0) % RING, -1)
    for number in tl.static_range(SLOTS):
        row = sequence * SLOTS + number
        token = NOISE if number else tl.maximum(newest, 0)
        tl.store(ids_ptr + row, token)
        tl.store(window_ptr + row * WINDOW + at_W, row_W, mask=at_W < WINDOW)
        turn = tl.load(rope_ptr + (position.to(tl.int64) + number) * ROPE + angle, mask=angle < ROPE)
        tl.store(ropes_ptr + row * ROPE + angle, turn, mask=angle < ROPE)


def draft_rows(
    slots_S: Tensor, going_S: Tensor, sequences: SequenceTensors, floor_M: Tensor, rope_P2F: Tensor, shape: DraftShape
) -> DraftRows:
    """As the twin."""
    whole = (*sequences[:3], floor_M)
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in whole), "sequences and floors are contiguous int32"
    assert slots_S.dtype == torch.int64 and slots_S.is_contiguous(), "slots are contiguous int64"
    assert going_S.dtype == torch.bool and going_S.is_contiguous() and len(going_S) == len(slots_S), "a bool a sequence"
    assert rope_P2F.is_contiguous(), "rotations are contiguous"
    count, width = len(slots_S), rope_P2F[0].numel()
    rows = count * shape.slots
    out = DraftRows(
        newest_S=floor_M.new_empty(count),
        position_S=slots_S.new_empty(count),
        token_ids_T=floor_M.new_empty(rows),
        rope_T2F=rope_P2F.new_empty(rows, *rope_P2F.shape[1:]),
        window_rows_TW=floor_M.new_empty(rows, shape.window),
    )
    if count:
        _draft_rows[(count,)](
            slots_S, going_S.view(torch.uint8), *sequences[:3], floor_M, rope_P2F, sequences.tokens_NL.shape[1],
            len(sequences.tokens_NL) - 1, *out, PAD=shape.pad, SLOTS=shape.slots, NOISE=shape.noise, WINDOW=shape.window,
            WINDOWS=triton.next_power_of_2(shape.window), RING=shape.ring_slots, ROPE=width,
            ROPES=triton.next_power_of_2(width), num_warps=1, **OVERLAP,
        )  # fmt: skip
    return out


@triton.jit
def _weigh_drafts(
    tokens_ptr, evidence_ptr, temperature_ptr, temperatures_ptr, scale_ptr, offset_ptr, slots_ptr, drafts_ptr, chance_ptr,
    out_ptr, num_fits, tokens_stride, evidence_stride,
    DEPTH: tl.constexpr, DEPTHS: tl.constexpr, FITTED: tl.constexpr, FITS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier_launches()
    sequence, at_K, fit_E = tl.program_id(0), tl.arange(0, DEPTHS), tl.arange(0, FITS)
    there_K, fitted_E = at_K < DEPTH, fit_E < num_fits
    fits_E = tl.load(temperatures_ptr + fit_E, mask=fitted_E, other=float("inf"))
    away_E = tl.abs(tl.load(temperature_ptr + sequence) - fits_E)
    nearest = tl.min(tl.where(away_E == tl.min(away_E, 0), fit_E, FITS), 0)
    token_K = tl.load(tokens_ptr + sequence * tokens_stride + at_K, mask=there_K, other=-1)
    evidence_K = tl.load(evidence_ptr + sequence * evidence_stride + at_K, mask=there_K, other=0.0).to(tl.float64)
    scale_K = tl.load(scale_ptr + nearest * FITTED + at_K, mask=there_K, other=0.0)
    offset_K = tl.load(offset_ptr + nearest * FITTED + at_K, mask=there_K, other=0.0)
    chance_K = (1.0 / (1.0 + tl.exp(-(evidence_K * scale_K + offset_K)))).to(tl.float32)
    chance_K = tl.where((token_K >= 0) & (chance_K == chance_K), chance_K, 0.0)
    to_K, out_K = tl.load(slots_ptr + sequence) * DEPTH + at_K, sequence * (2 * DEPTH) + at_K
    tl.store(drafts_ptr + to_K, token_K, mask=there_K)
    tl.store(chance_ptr + to_K, chance_K, mask=there_K)
    tl.store(out_ptr + out_K, token_K, mask=there_K)
    tl.store(out_ptr + out_K + DEPTH, chance_K.to(tl.int32, bitcast=True), mask=there_K)


def weigh_drafts(
    tokens_SK: Tensor,
    evidence_SK: Tensor,
    temperature_S: Tensor,
    temperature_E: Tensor,
    scale_EB: Tensor,
    offset_EB: Tensor,
    slots_S: Tensor,
    sequences: SequenceTensors,
) -> Tensor:
    """As the twin, but for the last bit of a chance."""
    (count, depth), fits = tokens_SK.shape, (temperature_S, temperature_E, scale_EB, offset_EB)
    drafts, chances = sequences.drafts_NK, sequences.confidence_NK
    assert all(x.dtype == torch.float64 and x.is_contiguous() for x in fits), "temperatures and fits are float64"
    assert tokens_SK.dtype == torch.int32 and evidence_SK.dtype == torch.float32, "tokens int32, evidence float32"
    assert tokens_SK.stride(1) == evidence_SK.stride(1) == 1, "a sequence's drafts are adjacent"
    assert drafts.shape[1] == depth <= scale_EB.shape[1], f"{depth} drafts for sequences of {drafts.shape[1]}"
    assert slots_S.dtype == torch.int64 and drafts.is_contiguous() and chances.is_contiguous(), "slots are int64"
    out = tokens_SK.new_empty(count, 2 * depth)
    if count:
        _weigh_drafts[(count,)](
            tokens_SK, evidence_SK, *fits, slots_S, drafts, chances, out, len(temperature_E), tokens_SK.stride(0),
            evidence_SK.stride(0), DEPTH=depth, DEPTHS=triton.next_power_of_2(depth), FITTED=scale_EB.shape[1],
            FITS=triton.next_power_of_2(len(temperature_E)), num_warps=1, enable_fp_fusion=False, **OVERLAP,
        )  # fmt: skip
    return out
