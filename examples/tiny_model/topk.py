"""Exact top-k masks over index scores: ties go to the lowest index, as in the engine.

Legend: R query rows · H index heads · J entries.
"""

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # training on a CPU needs no Triton
    triton = None

if triton is not None:

    @triton.jit
    def _score_kernel(  # type: ignore[no-untyped-def]
        dots_ptr, weights_ptr, scores_ptr, count, HEADS: tl.constexpr, BLOCK: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        score = tl.zeros((BLOCK,), dtype=tl.float32)
        for head in range(HEADS):
            weight = tl.load(weights_ptr + row * HEADS + head).to(tl.float32)
            dot = tl.load(dots_ptr + (row * HEADS + head) * count + entry, mask=entry < count, other=0.0).to(tl.float32)
            score += weight * tl.maximum(dot, 0.0)
        tl.store(scores_ptr + row * count + entry, score, mask=entry < count)

    @triton.jit
    def _topk_kernel(  # type: ignore[no-untyped-def]
        scores_ptr, allowed_ptr, out_ptr, count, k, BLOCK: tl.constexpr
    ):
        """The k-th largest key is found bit by bit, from the top: 32 counts of a row held in registers."""
        row = tl.program_id(0).to(tl.int64)
        entry = tl.arange(0, BLOCK)
        inside = entry < count
        allowed = (tl.load(allowed_ptr + row * count + entry, mask=inside, other=0) != 0) & inside
        score = tl.load(scores_ptr + row * count + entry, mask=inside, other=0.0) + 0.0  # -0 becomes 0
        bits = score.to(tl.int32, bitcast=True)
        ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483649
        key = tl.where(allowed, ordered, 0)  # 1 … 2^32 in order of the score; 0 is never chosen
        threshold = tl.zeros((), dtype=tl.int64)
        for step in range(33):
            trial = threshold + (tl.full((), 1, tl.int64) << (32 - step))
            threshold = tl.where(tl.sum((key >= trial).to(tl.int32)) >= k, trial, threshold)
        above = key > threshold
        tied = (key == threshold) & allowed
        room = k - tl.sum(above.to(tl.int32))
        chosen = above | (tied & (tl.cumsum(tied.to(tl.int32), 0) <= room))
        tl.store(out_ptr + row * count + entry, chosen.to(tl.int8), mask=inside)


def index_scores(dots_RHJ: Tensor, weights_RH: Tensor) -> Tensor:
    """Σ_h w_h · relu(q_h · k_j): float32 [R, J]."""
    if not dots_RHJ.is_cuda:
        return torch.einsum("rhj,rh->rj", dots_RHJ.float().relu(), weights_RH.float())
    rows, heads, count = dots_RHJ.shape
    scores = torch.empty((rows, count), device=dots_RHJ.device, dtype=torch.float32)
    block = min(1024, triton.next_power_of_2(count))
    grid = (rows, triton.cdiv(count, block))
    _score_kernel[grid](dots_RHJ.contiguous(), weights_RH.contiguous(), scores, count, heads, block)
    return scores


def topk_mask(scores_RJ: Tensor, allowed_RJ: Tensor, k: int) -> Tensor:
    """bool [R, J]: the k best allowed entries of every row, all of them where there are fewer."""
    if not scores_RJ.is_cuda:
        masked = scores_RJ.masked_fill(~allowed_RJ, -torch.inf)
        order = masked.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.zeros_like(allowed_RJ).scatter_(1, order, True) & allowed_RJ
    rows, count = scores_RJ.shape
    out = torch.empty((rows, count), device=scores_RJ.device, dtype=torch.int8)
    allowed = allowed_RJ.contiguous().view(torch.int8)
    _topk_kernel[(rows,)](scores_RJ.contiguous(), allowed, out, count, k, triton.next_power_of_2(count), num_warps=4)
    return out.view(torch.bool)


def candidate_mask(scores_RJ: Tensor, visible_RJ: Tensor, newest_R: Tensor, block_size: int, num_blocks: int) -> Tensor:
    """bool [R, J]: the entries of the best blocks by largest visible score; the newest visible entry's block always counts.

    Blocks are aligned to the row's own entries, so documents in a packed row must start on multiples of `block_size`.
    """
    blocks_RB = scores_RJ.masked_fill(~visible_RJ, -torch.inf).unflatten(1, (-1, block_size)).amax(-1)
    seen_RB = visible_RJ.unflatten(1, (-1, block_size)).any(-1)
    blocks_RB.scatter_(1, (newest_R // block_size).unsqueeze(1), torch.finfo(torch.float32).max)
    return topk_mask(blocks_RB, seen_RB, num_blocks).repeat_interleave(block_size, 1)
