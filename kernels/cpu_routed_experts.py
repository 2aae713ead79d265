"""Routed experts: compiled grouping and summing around the products of whole tiles. float32, bit-equal to the torch twin."""

from collections.abc import Callable, Sequence

import numba
import numpy as np
import torch
from torch import Tensor

TILE = 8  # rows of every product, as in the twin


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _tiles(picks: np.ndarray, num_experts: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each (row, slot) pair lies among the padded rows, and the expert of every tile."""
    counts = np.zeros(num_experts, np.int64)
    for t in range(picks.shape[0]):
        for slot in range(picks.shape[1]):
            counts[picks[t, slot]] += 1
    tiles = (counts + TILE - 1) // TILE
    owners = np.empty(tiles.sum(), np.int64)
    following = np.empty(num_experts, np.int64)
    first = 0
    for e in range(num_experts):
        following[e] = first * TILE
        owners[first : first + tiles[e]] = e
        first += tiles[e]
    places = np.empty(picks.shape, np.int64)
    for t in range(picks.shape[0]):
        for slot in range(picks.shape[1]):
            places[t, slot] = following[picks[t, slot]]
            following[picks[t, slot]] += 1
    return places, owners


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _spread(x: np.ndarray, weights: np.ndarray, places: np.ndarray, out: np.ndarray, out_weights: np.ndarray) -> None:
    for t in range(places.shape[0]):
        for slot in range(places.shape[1]):
            for d in range(x.shape[1]):
                out[places[t, slot], d] = x[t, d]
            out_weights[places[t, slot]] = weights[t, slot]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _collect(parts: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    for t in range(places.shape[0]):
        for d in range(out.shape[1]):
            out[t, d] = parts[places[t, 0], d]
        for slot in range(1, places.shape[1]):
            for d in range(out.shape[1]):
                out[t, d] += parts[places[t, slot], d]


def routed_experts(
    x_TD: Tensor,
    picks_TX: Tensor,
    weights_TX: Tensor,
    w13: Sequence[Tensor],
    w2: Sequence[Tensor],
    activate: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Σ over slots of expert(pick)(x) [T, D], slots from first to last; contiguous float32."""
    assert x_TD.dtype == torch.float32 and x_TD.is_contiguous()
    places, owners = _tiles(picks_TX.numpy(), len(w13))
    x_PD, weight_P = torch.zeros(len(owners) * TILE, x_TD.shape[1]), torch.zeros(len(owners) * TILE)
    _spread(x_TD.numpy(), weights_TX.numpy(), places, x_PD.numpy(), weight_P.numpy())
    experts = owners.tolist()
    parts_PD = _products(activate(_products(x_PD, experts, w13), weight_P), experts, w2)
    out_TD = torch.empty(x_TD.shape)
    _collect(parts_PD.numpy(), places, out_TD.numpy())
    return out_TD


def _products(x_PK: Tensor, owners: list[int], weights: Sequence[Tensor]) -> Tensor:
    out_PN = torch.empty(x_PK.shape[0], weights[0].shape[0])
    x_tiles, out_tiles = (x.view(-1, TILE, x.shape[1]).unbind(0) for x in (x_PK, out_PN))
    for x_tile, out_tile, owner in zip(x_tiles, out_tiles, owners):
        torch.mm(x_tile, weights[owner].t(), out=out_tile)
    return out_PN
