"""Pairs (row, slot) sorted by expert: three small launches, no atomics, no host, whatever order programs run in.

Counts of every chunk of pairs by expert; for every expert their running sums over the chunks; and then a pair's place: where
its expert begins, plus its expert's pairs in earlier chunks, plus those before it in its own.

Legend: T rows · X chosen experts of a row · P = T · X pairs in N chunks of C · E local experts, B of them together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.ops.expert_permutation import Permutation

CHUNK, WARPS = 128, 4
SUM_EXPERTS, SUM_CHUNKS = 8, 256  # of a tile of running sums


@triton.jit
def _local_picks(picks_ptr, num_pairs, first, num_experts, CHUNK: tl.constexpr):
    """Local numbers of a chunk's experts, -1 for others."""
    pair_C = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    pick_C = tl.load(picks_ptr + pair_C, mask=pair_C < num_pairs, other=first - 1) - first
    return pair_C, tl.where((pick_C >= 0) & (pick_C < num_experts), pick_C, -1)


@triton.jit
def _count(picks_ptr, counts_ptr, num_pairs, first, num_experts, CHUNK: tl.constexpr, EXPERTS: tl.constexpr):
    _, pick_C = _local_picks(picks_ptr, num_pairs, first, num_experts, CHUNK)
    expert_B = tl.program_id(1) * EXPERTS + tl.arange(0, EXPERTS)
    count_B = tl.sum((pick_C[:, None] == expert_B[None, :]).to(tl.int32), 0)
    tl.store(counts_ptr + tl.program_id(0) * num_experts + expert_B, count_B, mask=expert_B < num_experts)


@triton.jit
def _running_sums(counts_ptr, totals_ptr, num_chunks, num_experts, EXPERTS: tl.constexpr, CHUNKS: tl.constexpr):
    """Counts become counts of earlier chunks; the totals follow."""
    expert_B = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    inside_1B = (expert_B < num_experts)[None, :]
    total_B = tl.zeros((EXPERTS,), tl.int32)
    for chunk in range(0, num_chunks, CHUNKS):
        chunk_N1 = (chunk + tl.arange(0, CHUNKS))[:, None]
        ptr_NB = counts_ptr + chunk_N1 * num_experts + expert_B[None, :]
        count_NB = tl.load(ptr_NB, mask=inside_1B & (chunk_N1 < num_chunks), other=0)
        tl.store(ptr_NB, total_B[None, :] + tl.cumsum(count_NB, 0) - count_NB, mask=inside_1B & (chunk_N1 < num_chunks))
        total_B += tl.sum(count_NB, 0)
    tl.store(totals_ptr + expert_B, total_B, mask=expert_B < num_experts)


@triton.jit
def _place(
    picks_ptr, weights_ptr, earlier_ptr, totals_ptr, starts_ptr, rows_ptr, places_ptr, sorted_ptr,
    num_pairs, first, num_experts, CHOSEN: tl.constexpr, CHUNK: tl.constexpr, EXPERTS: tl.constexpr,
    WEIGHTS: tl.constexpr,
):  # fmt: skip
    pair_C, pick_C = _local_picks(picks_ptr, num_pairs, first, num_experts, CHUNK)
    expert_B = tl.arange(0, EXPERTS)
    total_B = tl.load(totals_ptr + expert_B, mask=expert_B < num_experts, other=0)
    end_B = tl.cumsum(total_B, 0)
    if tl.program_id(0) == 0:
        tl.store(starts_ptr + expert_B, end_B - total_B, mask=expert_B <= num_experts)
    order_C = tl.arange(0, CHUNK)
    before_CC = (pick_C[:, None] == pick_C[None, :]) & (order_C[:, None] < order_C[None, :])
    start_C = tl.gather(end_B - total_B, tl.maximum(pick_C, 0), 0)
    local_C, there_C = pick_C >= 0, pair_C < num_pairs
    earlier_C = tl.load(earlier_ptr + tl.program_id(0) * num_experts + pick_C, mask=local_C, other=0)
    place_C = start_C + earlier_C + tl.sum(before_CC.to(tl.int32), 0)
    tl.store(places_ptr + pair_C, tl.where(local_C, place_C, -1), mask=there_C)
    tl.store(rows_ptr + place_C, pair_C // CHOSEN, mask=local_C)
    unused_C = there_C & (pair_C >= tl.sum(total_B, 0))
    tl.store(rows_ptr + pair_C, -1, mask=unused_C)
    if WEIGHTS:
        tl.store(sorted_ptr + place_C, tl.load(weights_ptr + pair_C, mask=local_C, other=0.0), mask=local_C)
        tl.store(sorted_ptr + pair_C, 0.0, mask=unused_C)


def expert_permutation(
    picks_TX: Tensor, num_experts: int, first: int = 0, weights_TX: Tensor | None = None
) -> Permutation:
    """Pairs of the `num_experts` experts from `first` on in the order (expert, row, slot); ids int32, weights float32."""
    assert picks_TX.dtype == torch.int32 and picks_TX.is_contiguous(), "ids are contiguous int32"
    plain = weights_TX is None or (weights_TX.dtype == torch.float32 and weights_TX.is_contiguous())
    assert plain and (weights_TX is None or weights_TX.shape == picks_TX.shape), "weights are contiguous float32"
    pairs, chunks = picks_TX.numel(), max(1, triton.cdiv(picks_TX.numel(), CHUNK))
    out = Permutation(
        starts_E1=picks_TX.new_empty(num_experts + 1),
        rows_P=picks_TX.new_empty(pairs),
        places_TX=torch.empty_like(picks_TX),
        weights_P=None if weights_TX is None else weights_TX.new_empty(pairs),
    )
    counts_NE, totals_E = picks_TX.new_empty(chunks, num_experts), picks_TX.new_empty(num_experts)
    experts = triton.next_power_of_2(num_experts + 1)
    counted = min(experts, 128)
    _count[(chunks, triton.cdiv(num_experts, counted))](
        picks_TX, counts_NE, pairs, first, num_experts, CHUNK=CHUNK, EXPERTS=counted, num_warps=WARPS
    )
    _running_sums[(triton.cdiv(num_experts, SUM_EXPERTS),)](
        counts_NE, totals_E, chunks, num_experts, EXPERTS=SUM_EXPERTS, CHUNKS=SUM_CHUNKS, num_warps=WARPS
    )
    _place[(chunks,)](
        picks_TX, weights_TX, counts_NE, totals_E, out.starts_E1, out.rows_P, out.places_TX, out.weights_P,
        pairs, first, num_experts, CHOSEN=picks_TX.shape[1], CHUNK=CHUNK, EXPERTS=experts,
        WEIGHTS=weights_TX is not None, num_warps=WARPS,
    )  # fmt: skip
    return out
