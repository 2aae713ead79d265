"""Attention of one query row over its own fixed number of key slots, with a sink per head.

Every row is a product of its own (bmm over rows), and the number of slots never changes, so neither the batch nor the length
of the context can change a row's bits. Keys are values too.

Legend: T rows · H heads · K head dim · W window slots in position order · S selected slots by ascending index.
"""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import working


def attention(
    q_THK: Tensor,
    window_TWK: Tensor,
    window_mask_TW: Tensor,
    selected_TSK: Tensor | None,
    selected_mask_TS: Tensor | None,
    sink_H: Tensor,
    scale: float,
) -> Tensor:
    """[T, H, K]. False in a mask hides a slot; hidden slots must hold zeros. The sink only enters the denominator."""
    q_THK = (q_THK * scale).contiguous()
    parts = [(window_TWK, _logits(q_THK, window_TWK, window_mask_TW))]
    if selected_TSK is not None:
        assert selected_mask_TS is not None
        parts.append((selected_TSK, _logits(q_THK, selected_TSK, selected_mask_TS)))
    peak_TH = sink_H.expand(q_THK.shape[:2])
    for _, logits in parts:
        peak_TH = torch.maximum(peak_TH, logits.amax(-1))
    mass_TH = torch.exp(sink_H - peak_TH)
    total = None
    for keys, logits in parts:
        weights = torch.exp(logits.sub_(peak_TH.unsqueeze(-1)))
        mass_TH = mass_TH + weights.sum(-1)
        part = torch.bmm(weights.to(keys.dtype), keys)
        total = part if total is None else total + part
    assert total is not None
    return (working(total) / mass_TH.unsqueeze(-1)).to(q_THK.dtype)


def _logits(q_THK: Tensor, keys_TJK: Tensor, mask_TJ: Tensor) -> Tensor:
    logits = working(torch.bmm(q_THK, keys_TJK.transpose(1, 2)))
    return logits.masked_fill_(~mask_TJ.unsqueeze(1), -torch.inf)
