"""Which drafts the budget of a decode step checks: every one ranked against all others, so that equal ones have one order.

Twin: `allocate` of deepinfer/ops/draft_allocation.py, of which this gives the places before they are counted.

Legend: S, O sequences, the last of which is padding · K drafts.
"""

import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

from deepinfer.ops.decode_rows import HEADER, SequenceTensors

RANKED, AGAINST = 32, 64  # sequences whose drafts of one depth a program ranks, and those it compares with at a time


@triton.jit
def _available(
    slot_S, there_S, num_tokens_ptr, length_end_ptr, drafts_ptr, DEPTH: tl.constexpr, VERIFY_LENGTH: tl.constexpr
):
    """Drafts that each sequence may check."""
    room_S = tl.load(length_end_ptr + slot_S, mask=there_S, other=0) - tl.load(
        num_tokens_ptr + slot_S, mask=there_S, other=0
    ) - 1  # fmt: skip
    have_S, going_S = tl.zeros_like(slot_S), there_S
    for depth in tl.static_range(DEPTH):
        going_S = going_S & (tl.load(drafts_ptr + slot_S * DEPTH + depth, mask=there_S, other=-1) >= 0)
        have_S += going_S.to(tl.int32)
    return tl.maximum(tl.minimum(tl.minimum(have_S, room_S), VERIFY_LENGTH), 0)


@triton.jit
def _confidence(confidence_ptr, slot_S, there_S, depth, DEPTH: tl.constexpr):
    """Within [0, 1]; NaN counts as 0."""
    confidence_S = tl.load(confidence_ptr + slot_S * DEPTH + depth, mask=there_S, other=0.0)
    return tl.where(confidence_S > 0, tl.where(confidence_S < 1, confidence_S, 1.0), 0.0)


@triton.jit
def _rank_drafts(
    plan_ptr, num_tokens_ptr, length_end_ptr, drafts_ptr, confidence_ptr, won_ptr, num_sequences,
    DEPTH: tl.constexpr, VERIFY_LENGTH: tl.constexpr, HEADER: tl.constexpr, RANKED: tl.constexpr, AGAINST: tl.constexpr,
):  # fmt: skip
    """won [K, S]: whether a draft is among those that the step's budget checks."""
    wait_for_earlier_launches()
    own_depth = tl.program_id(0)
    own_S = tl.program_id(1) * RANKED + tl.arange(0, RANKED)
    there_S = own_S < num_sequences
    slot_S = tl.load(plan_ptr + HEADER + own_S, mask=there_S, other=0)
    available_S = _available(slot_S, there_S, num_tokens_ptr, length_end_ptr, drafts_ptr, DEPTH, VERIFY_LENGTH)
    chance_S, own_chance_S = tl.full([RANKED], 1.0, tl.float32), tl.zeros([RANKED], tl.float32)
    for depth in tl.static_range(DEPTH):
        chance_S = chance_S * _confidence(confidence_ptr, slot_S, there_S, depth, DEPTH)
        own_chance_S = tl.where(depth == own_depth, chance_S, own_chance_S)
    rank_S = tl.zeros([RANKED], tl.int32)
    for first in range(0, num_sequences, AGAINST):
        other_O = first + tl.arange(0, AGAINST)
        there_O = other_O < num_sequences
        slot_O = tl.load(plan_ptr + HEADER + other_O, mask=there_O, other=0)
        available_O = _available(slot_O, there_O, num_tokens_ptr, length_end_ptr, drafts_ptr, DEPTH, VERIFY_LENGTH)
        chance_O = tl.full([AGAINST], 1.0, tl.float32)
        for depth in tl.static_range(DEPTH):
            chance_O = chance_O * _confidence(confidence_ptr, slot_O, there_O, depth, DEPTH)
            other_SO = tl.where(depth < available_O, chance_O, -1.0)[None, :]
            earlier_SO = (depth < own_depth) | ((depth == own_depth) & (other_O[None, :] < own_S[:, None]))
            ahead_SO = (other_SO > own_chance_S[:, None]) | ((other_SO == own_chance_S[:, None]) & earlier_SO)
            rank_S += tl.sum(ahead_SO.to(tl.int32), 1)
    won_S = (rank_S < tl.load(plan_ptr + 1)) & (own_depth < available_S)
    tl.store(won_ptr + own_depth * num_sequences + own_S, won_S.to(tl.int32), mask=there_S)


def rank_drafts(plan_X: Tensor, sequences: SequenceTensors, num_sequences: int, verify_length: int) -> Tensor:
    """Int32 [K, S]: 1 where a draft is checked. Plan and sequences as for `decode_rows`, which looks at them."""
    depth = sequences.drafts_NK.shape[1]
    won_KS = plan_X.new_empty(depth, num_sequences)
    _rank_drafts[(depth, triton.cdiv(num_sequences, RANKED))](
        plan_X, *sequences[1:], won_KS, num_sequences, DEPTH=depth, VERIFY_LENGTH=verify_length, HEADER=HEADER,
        RANKED=RANKED, AGAINST=AGAINST, num_warps=4, **OVERLAP,
    )  # fmt: skip
    return won_KS
