"""How many rows each expert got, step by step: counted where rows come from, added up over ranks when somebody asks.

Legend: W steps of a window · L layers · E experts · T rows · X chosen experts of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.parallel.peers import Peers


class LoadWindow:
    """The loads of this rank's rows in the newest steps. Counting waits for nothing, so that it may be part of a graph."""

    def __init__(self, num_steps: int, num_layers: int, num_experts: int, device: str | torch.device = "cpu") -> None:
        self._now_LE = torch.zeros(num_layers, num_experts, dtype=torch.int64, device=device)
        self._ring_WLE = torch.zeros(num_steps, num_layers, num_experts, dtype=torch.int64, device=device)
        self.num_ended = 0

    def count(self, layer: int, picks_TX: Tensor, live_T1: Tensor | None = None) -> None:
        """Rows of the running step go to these experts of a layer; those of padding, which are not `live_T1` (bool), do not."""
        ones_TX = torch.ones_like(picks_TX) if live_T1 is None else live_T1.expand_as(picks_TX).to(picks_TX.dtype)
        self._now_LE[layer].scatter_add_(0, picks_TX.flatten(), ones_TX.flatten())

    def end_step(self) -> None:
        """The running step is through. All ranks of a group end the same steps."""
        self._ring_WLE[self.num_ended % len(self._ring_WLE)].copy_(self._now_LE)
        self._now_LE.zero_()
        self.num_ended += 1

    def fill(self, load_WLE: np.ndarray) -> None:
        """Take the newest steps of loads that were kept; one rank of a group does, since they are sums over all."""
        for load_LE in load_WLE[-len(self._ring_WLE) :]:
            self._now_LE += torch.from_numpy(load_LE).to(self._now_LE.device)
            self.end_step()

    def gathered(self, peers: Peers) -> np.ndarray:
        """int64 [W, L, E], oldest first: sums over all ranks. Each adds up a share of the numbers and tells the others."""
        size = len(self._ring_WLE)
        kept = min(self.num_ended, size)
        order = torch.arange(self.num_ended - kept, self.num_ended, device=self._ring_WLE.device) % size
        mine_WLE = self._ring_WLE[order]
        share = -(-mine_WLE.numel() // peers.size)
        flat = mine_WLE.new_zeros(peers.size * share)
        flat[: mine_WLE.numel()] = mine_WLE.flatten()
        summed = peers.all_to_all(flat.view(peers.size, share)).sum(0)
        return peers.all_gather(summed).flatten()[: mine_WLE.numel()].view_as(mine_WLE).cpu().numpy()
