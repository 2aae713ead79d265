"""The router for any number of experts, in plain Triton. Twin: deepinfer/ops/router.py.

Legend: T rows · E experts · X chosen experts · a program takes one row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 1


@triton.jit
def _softplus(x):
    """max(x, 0) + log1p(exp(-|x|)); log1p(e) is e · log(1 + e) / ((1 + e) - 1), which makes good what 1 + e rounds away."""
    small = tl.exp(-tl.abs(x))
    grown = 1.0 + small
    step = grown - 1.0
    rest = tl.where(step == 0.0, small, tl.log(grown) * (small / tl.where(step == 0.0, 1.0, step)))
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + rest


@triton.jit
def _router(
    logits_ptr, bias_ptr, picks_ptr, weights_ptr, row_stride, factor,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, CHOSEN: tl.constexpr,
):  # fmt: skip
    row, expert_E = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    real_E = expert_E < EXPERTS
    score_E = tl.sqrt_rn(_softplus(tl.load(logits_ptr + row * row_stride + expert_E, mask=real_E, other=0.0)))
    biased_E = score_E + tl.load(bias_ptr + expert_E, mask=real_E, other=0.0)
    biased_E = tl.where(biased_E == biased_E, biased_E, float("inf"))  # as a descending sort has NaN first
    free_E, total = real_E, 0.0
    picks, weights = (), ()
    for _ in tl.static_range(CHOSEN):
        best = tl.max(tl.where(free_E, biased_E, float("-inf")), 0)
        pick = tl.min(tl.where(free_E & (biased_E == best), expert_E, PADDED), 0)
        weight = tl.sum(tl.where(expert_E == pick, score_E, 0.0), 0)
        free_E = free_E & (expert_E != pick)
        total += weight
        picks += (pick,)
        weights += (weight,)
    for slot in tl.static_range(CHOSEN):
        tl.store(picks_ptr + row * CHOSEN + slot, picks[slot])
        tl.store(weights_ptr + row * CHOSEN + slot, weights[slot] * factor / (total + 1e-20))


def router(logits_TE: Tensor, bias_E: Tensor, chosen: int, factor: float) -> tuple[Tensor, Tensor]:
    """Ids int32 [T, X], best first, lowest id first among equals, and weights float32 [T, X] that add up to `factor`."""
    rows, experts = logits_TE.shape
    assert logits_TE.dtype == bias_E.dtype == torch.float32, "logits and bias are float32"
    assert logits_TE.stride(1) == 1 and bias_E.is_contiguous(), "the numbers of a row are adjacent"
    assert bias_E.shape == (experts,) and 0 < chosen <= experts, "one bias an expert, and no more chosen than there are"
    picks_TX = torch.empty(rows, chosen, dtype=torch.int32, device=logits_TE.device)
    weights_TX = torch.empty(rows, chosen, device=logits_TE.device)
    if rows:
        _router[(rows,)](
            logits_TE, bias_E, picks_TX, weights_TX, logits_TE.stride(0), factor,
            EXPERTS=experts, PADDED=triton.next_power_of_2(experts), CHOSEN=chosen, num_warps=WARPS,
        )  # fmt: skip
    return picks_TX, weights_TX
