"""One slot of a block of drafts: its logits lean on the token before it, the next token is chosen, and its evidence weighed.

Legend: B sequences · V vocabulary · R rank of the bias · D hidden · X = D + R.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.sampling_rows import GREEDY_BELOW, gumbel, noise_bits


class MarkovStep(NamedTuple):
    """`token_B` int32, -1 where nothing was chosen; `evidence_B` float32, in the token's acceptance, before the sigmoid."""

    token_B: Tensor
    evidence_B: Tensor


def markov_step(
    base_BV: Tensor,
    head_VR: Tensor,
    embed_VR: Tensor,
    previous_B: Tensor,
    hidden_BD: Tensor,
    projection_X: Tensor,
    seed_B: Tensor,
    position_B: Tensor,
    temperature_B: Tensor,
    *,
    work: object = None,
    ahead: int = 0,
    stream: int = 0,
    out: MarkovStep | None = None,
) -> MarkovStep:
    """logits = base + head · embed[previous]; token = argmax(logits / temperature + Gumbel noise of `position` + `ahead`).

    A temperature below 1e-5 is greedy. Where `previous` is -1, or the logits hold a NaN, +inf or nothing but -inf, no token is
    chosen. Evidence is projection · [hidden, embed[previous]]; a confidence is sigmoid(evidence / a temperature of its own).
    `work` is what a kernel keeps between its blocks; this twin needs none.
    """
    wide = torch.promote_types(base_BV.dtype, torch.float32)
    embed_BR = embed_VR[previous_B.clamp(min=0).long()]
    logits_BV = base_BV.to(wide) + embed_BR.to(wide) @ head_VR.to(wide).t()
    fine_B = torch.isfinite(logits_BV.amax(1)) & (previous_B >= 0)
    ids_V = torch.arange(logits_BV.shape[1], device=logits_BV.device)
    noise_BV = gumbel(noise_bits(seed_B.unsqueeze(1), position_B.unsqueeze(1) + ahead, ids_V, stream))
    greedy_B1 = (temperature_B < GREEDY_BELOW).unsqueeze(1)
    drawn_BV = logits_BV.double() / temperature_B.unsqueeze(1).clamp(min=GREEDY_BELOW) + noise_BV
    scores_BV = torch.where(greedy_B1, logits_BV.double(), drawn_BV)
    best_BV = scores_BV == scores_BV.amax(1, keepdim=True)
    token_B = torch.where(best_BV, ids_V, len(ids_V)).amin(1)
    evidence_B = torch.cat((hidden_BD, embed_BR), 1).to(wide) @ projection_X.to(wide)
    step = MarkovStep(token_B.masked_fill(~fine_B, -1).int(), evidence_B.float())
    return step if out is None else MarkovStep(*(kept.copy_(new) for kept, new in zip(out, step)))
