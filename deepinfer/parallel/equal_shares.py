"""Rows of several ranks brought together on all of them, by one collective of equal shares: who has fewer sends some twice.

Legend: G gathered rows · M of them this rank's · P rows of a share · T rows here · R numbers of a row · B bytes of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.parallel.row_bytes import as_bytes, from_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.parallel.peers import Peers


class GatheredRows:
    """A `model.division.Gather`: of the T rows here `mine` [M] travel, and `owner_G` says whose each gathered row is.

    Row numbers go to the device of the rows once, with the first of them.
    """

    def __init__(self, peers: Peers, mine: np.ndarray, owner_G: np.ndarray) -> None:
        self._peers, (share, place_G) = peers, shares(owner_G, peers.size)
        self._share, self._none_here = share, not len(mine)
        padded = np.concatenate((mine, np.repeat(mine[-1:], share - len(mine)))) if len(mine) else mine
        self._mine_P, self._place_G = (torch.from_numpy(np.ascontiguousarray(n, np.int64)) for n in (padded, place_G))

    def __call__(self, x_TR: Tensor) -> Callable[[], Tensor]:
        """Begins; what comes back waits for the rows [G, R]."""
        if not self._share:
            return lambda: x_TR[:0]
        if self._mine_P.device != x_TR.device:
            self._mine_P, self._place_G = (on_device(n, x_TR.device) for n in (self._mine_P, self._place_G))
        sent_PR = x_TR.new_zeros(self._share, x_TR.shape[1]) if self._none_here else x_TR.index_select(0, self._mine_P)
        arrived = self._peers.begin_all_gather(as_bytes(sent_PR))
        return lambda: from_bytes(arrived().flatten(0, 1), x_TR.dtype).index_select(0, self._place_G)


def on_device(numbers: Tensor, device: torch.device) -> Tensor:
    """Nothing waits for it: what is not pinned would be copied behind all that was launched before."""
    return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)


def shares(owner_G: np.ndarray, size: int) -> tuple[int, np.ndarray]:
    """P, the rows of the rank that has most; and where each row lies among the `size` · P that come together."""
    counts = np.bincount(owner_G, minlength=size)
    share, order = int(counts.max()), np.argsort(owner_G, kind="stable")
    place_G = np.empty(len(owner_G), dtype=np.int64)
    place_G[order] = owner_G[order] * share + np.arange(len(owner_G)) - np.repeat(np.cumsum(counts) - counts, counts)
    return share, place_G
