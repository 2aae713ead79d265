"""Routed experts: rows grouped by expert into zero-padded tiles, results summed row by row in router-slot order.

Legend: T rows · X chosen experts of a row · P padded rows, whole tiles of one expert each · D hidden · I inner.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from deepinfer.ops.arithmetic import silu, working
from deepinfer.ops.linear import TILE, tiles


def swiglu(h_TJ: Tensor, weight_T: Tensor | None, limit: float) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit) · weight [T, I] of h = gate | up [T, 2 I]."""
    gate, up = working(h_TJ).chunk(2, dim=-1)
    act = silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weight_T is not None:
        act = act * weight_T.unsqueeze(-1)
    return act.to(h_TJ.dtype)


def expert_tiles(picks_TX: np.ndarray, num_experts: int) -> tuple[np.ndarray, list[int]]:
    """Where each (row, slot) pair lies among the padded rows, int64 [T · X], and the expert of every tile."""
    flat = picks_TX.reshape(-1)
    counts = np.bincount(flat, minlength=num_experts)
    tiles = -(-counts // TILE)
    first_row = (np.cumsum(tiles) - tiles) * TILE
    order = np.argsort(flat, kind="stable")
    rank = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.empty(len(flat), dtype=np.int64)
    places[order] = first_row[flat[order]] + rank
    return places, np.repeat(np.arange(num_experts), tiles).tolist()


def routed_experts(
    x_TD: Tensor,
    picks_TX: Tensor,
    weights_TX: Tensor,
    w13: Sequence[Tensor],
    w2: Sequence[Tensor],
    activate: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Σ over slots of expert(pick)(x) [T, D], slots from first to last.

    `activate(h, weight)` turns the rows of w13 · x into the input of w2, routing weight and quantiser included.
    """
    rows, chosen = picks_TX.shape
    places, owners = expert_tiles(picks_TX.numpy(), len(w13))
    places_P = torch.from_numpy(places)
    padded = len(owners) * TILE
    x_PD = x_TD.new_zeros(padded, x_TD.shape[1])
    x_PD[places_P] = x_TD.repeat_interleave(chosen, dim=0)
    weight_P = weights_TX.new_zeros(padded)
    weight_P[places_P] = weights_TX.flatten()
    act_PI = activate(_tiled(x_PD, owners, w13), weight_P)
    parts_TXD = _tiled(act_PI, owners, w2)[places_P].view(rows, chosen, x_TD.shape[1])
    total = parts_TXD[:, 0]
    for slot in range(1, chosen):
        total = total + parts_TXD[:, slot]
    return total


def _tiled(x_PK: Tensor, owners: list[int], weights: Sequence[Tensor]) -> Tensor:
    out_PN = x_PK.new_empty(x_PK.shape[0], weights[0].shape[0])
    for x_tile, out_tile, owner in zip(tiles(x_PK), tiles(out_PN), owners):
        torch.mm(x_tile, weights[owner].t(), out=out_tile)
    return out_PN
