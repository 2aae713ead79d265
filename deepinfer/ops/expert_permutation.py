"""Pairs (row, slot) sorted by expert, and the way back.

Legend: T rows · X chosen experts of a row · P = T · X pairs · E local experts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import working


class Permutation(NamedTuple):
    """Pairs of local experts in the order (expert, row, slot).

    Expert e has sorted places starts[e] … starts[e + 1] - 1 (int32 [E + 1]). At a place: its row (int32 [P]) and its routing
    weight (float32 [P], or None). Places from starts[E] on hold row -1 and weight 0. `places_TX` (int32) is the place of every
    pair, -1 for experts that are not local.
    """

    starts_E1: Tensor
    rows_P: Tensor
    places_TX: Tensor
    weights_P: Tensor | None


def expert_permutation(
    picks_TX: Tensor, num_experts: int, first: int = 0, weights_TX: Tensor | None = None
) -> Permutation:
    """The pairs whose expert is one of `num_experts` from `first` on; other ids, negative ones too, are not local."""
    flat = picks_TX.flatten().long() - first
    local = (flat >= 0) & (flat < num_experts)
    flat = torch.where(local, flat, num_experts)
    order = flat.sort(stable=True).indices
    starts = torch.searchsorted(flat[order], torch.arange(num_experts + 1, device=flat.device))
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=flat.device))
    rows_P = torch.where(local[order], order // picks_TX.shape[1], -1)
    weights_P = None if weights_TX is None else torch.where(local[order], weights_TX.flatten()[order], 0.0)
    places_TX = torch.where(local, places, -1).view(picks_TX.shape)
    return Permutation(starts.int(), rows_P.int(), places_TX.int(), weights_P)


def combine(parts_PD: Tensor, places_TX: Tensor, shared_TD: Tensor | None) -> Tensor:
    """Σ over slots of the parts at `places_TX`, slots from first to last, then the shared expert's row; rounded once, [T, D].

    A slot with a negative place adds nothing.
    """
    total = working(parts_PD.new_zeros(places_TX.shape[0], parts_PD.shape[1]))
    for place_T in places_TX.unbind(1):
        part_TD = working(parts_PD[place_T.clamp(min=0)])
        total = torch.where((place_T >= 0).unsqueeze(1), total + part_TD, total)
    return (total if shared_TD is None else total + working(shared_TD)).to(parts_PD.dtype)
