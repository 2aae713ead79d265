"""New tokens at the ends of sequences and drafts behind them, one launch each. Twins: deepinfer/ops/sequence_tokens.py.

Legend: S, R sequences · T tokens · X starts · K drafts · M tokens of a sequence at most.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from torch import Tensor

from deepinfer.ops.decode_rows import SequenceTensors

WARPS = 1


@triton.jit
def _append_tokens(
    tokens_ptr, num_tokens_ptr, drafts_ptr, slots_ptr, from_ptr, starts_ptr, counts_ptr, columns,
    PAD: tl.constexpr, DEPTH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """One sequence a program."""
    wait_for_earlier_launches()
    slot = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    start, count = tl.load(starts_ptr + tl.program_id(0)), tl.load(counts_ptr + tl.program_id(0)).to(tl.int32)
    length, at_M = tl.load(num_tokens_ptr + slot), tl.arange(0, MOST)
    token_M = tl.load(from_ptr + start + at_M, mask=at_M < count, other=0).to(tl.int32)
    tl.store(tokens_ptr + slot * columns + PAD + length + at_M, token_M, mask=at_M < count)
    tl.store(num_tokens_ptr + slot, length + count)
    tl.store(drafts_ptr + slot * DEPTH + at_M, tl.full([MOST], -1, tl.int32), mask=at_M < DEPTH)


@triton.jit
def _keep_drafts(
    drafts_ptr, confidence_ptr, slots_ptr, tokens_ptr, chance_ptr, DEPTH: tl.constexpr, DEPTHS: tl.constexpr
):
    wait_for_earlier_launches()
    slot, at_K = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64), tl.arange(0, DEPTHS)
    from_K, to_K, there_K = tl.program_id(0) * DEPTH + at_K, slot * DEPTH + at_K, at_K < DEPTH
    tl.store(drafts_ptr + to_K, tl.load(tokens_ptr + from_K, mask=there_K, other=-1).to(tl.int32), mask=there_K)
    tl.store(confidence_ptr + to_K, tl.load(chance_ptr + from_K, mask=there_K, other=0.0), mask=there_K)


def append_tokens(
    sequences: SequenceTensors, pad: int, slots_R: Tensor, token_T: Tensor, starts_X: Tensor, counts_R: Tensor
) -> None:
    """As the twin; numbers int32 or int64, contiguous."""
    tokens, num_tokens, _, drafts, _ = sequences
    whole = (tokens, num_tokens, drafts, slots_R, token_T, starts_X, counts_R)
    assert all(x.is_contiguous() and x.dtype in (torch.int32, torch.int64) for x in whole), "contiguous whole numbers"
    assert len(slots_R) == len(counts_R) <= len(starts_X), "a start and a count for each sequence"
    depth = drafts.shape[1]
    if len(slots_R):
        _append_tokens[(len(slots_R),)](
            tokens, num_tokens, drafts, slots_R, token_T, starts_X, counts_R, tokens.shape[1],
            PAD=pad, DEPTH=depth, MOST=triton.next_power_of_2(depth + 1), num_warps=WARPS, **OVERLAP,
        )  # fmt: skip


def keep_drafts(sequences: SequenceTensors, slots_S: Tensor, tokens_SK: Tensor, confidence_SK: Tensor) -> None:
    """As the twin; tokens int32 or int64, confidences float32."""
    drafts, confidence, depth = sequences.drafts_NK, sequences.confidence_NK, sequences.drafts_NK.shape[1]
    assert tokens_SK.shape == confidence_SK.shape == (len(slots_S), depth), f"{depth} drafts for each sequence"
    given = (drafts, confidence, slots_S, tokens_SK.contiguous(), confidence_SK.contiguous())
    assert all(x.is_contiguous() for x in given), "everything is contiguous"
    assert confidence_SK.dtype == torch.float32, "confidences are float32"
    if len(slots_S) and depth:
        _keep_drafts[(len(slots_S),)](
            *given, DEPTH=depth, DEPTHS=triton.next_power_of_2(depth), num_warps=WARPS, **OVERLAP
        )
