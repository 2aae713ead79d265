"""Rows to experts of other ranks by exact numbers, which the host reads: what long chunks of prompts do, outside of graphs.

Rows travel to the ranks that hold an expert of theirs, once to each. Both ends number them alike: N rows by rank, then by their
order at home; of each its experts there in the order of the router's slots.

Legend: T rows at home · R ranks · N rows that travel · M rows that came · X chosen experts of a row · D hidden · P pairs ·
B bytes.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.model.fused.dispatch import Parts
from deepinfer.ops.expert_permutation import Permutation
from deepinfer.parallel.peers import Peers

Serve = Callable[[Tensor], tuple[Tensor, Permutation]]  # as for `FixedStep`
Combine = Callable[[Tensor, Tensor, None], Tensor]


class SplitStep:
    """The exchanges of one step's layers."""

    def __init__(self, *, reproducible: bool, combine: Combine) -> None:
        self.reproducible, self._combine = reproducible, combine

    def start(
        self, peers: Peers, message_TB: Tensor, slots_TX: Tensor, slots_per_rank: int, serve: Serve
    ) -> Callable[[], Parts]:
        rank_TX = slots_TX.long().div(slots_per_rank, rounding_mode="floor")
        goes_RT = torch.stack([(rank_TX == rank).any(1) for rank in range(peers.size)])
        row_N = goes_RT.nonzero()[:, 1]
        send_R, pairs_R = goes_RT.sum(1), torch.stack([(rank_TX == rank).sum() for rank in range(peers.size)])
        came_R = peers.all_to_all(torch.stack((send_R, pairs_R), 1))  # [R, 2]
        send, pairs, receive, owed = torch.cat((send_R, pairs_R, came_R.T.reshape(-1))).view(4, -1).tolist()
        rows = peers.exchange(message_TB[row_N], send, receive)

        def finish() -> Parts:
            parts_PD, here = serve(rows())
            if self.reproducible:
                places_P = here.places_TX[here.places_TX >= 0]
                back, splits = parts_PD.index_select(0, places_P), (owed, pairs)
            else:
                back, splits = self._combine(parts_PD, here.places_TX, None), (receive, send)
            came = peers.exchange(back.view(torch.uint8), *splits)().view(parts_PD.dtype)
            return Parts(came, _pair_places(rank_TX) if self.reproducible else _row_places(goes_RT))

        return finish

    def serve(self, peers: Peers, nobody_1B: Tensor, chosen: int, serve: Serve) -> None:
        slots_0X = torch.empty(0, chosen, dtype=torch.int32, device=nobody_1B.device)
        self.start(peers, nobody_1B[:0], slots_0X, 1, serve)()


def _pair_places(rank_TX: Tensor) -> Tensor:
    """int32 [T, X]: pairs come back by rank, then as they are at home; those of nobody do not."""
    order = rank_TX.flatten().sort(stable=True).indices
    numbers = torch.arange(len(order), dtype=torch.int32, device=order.device)
    places_TX = torch.empty_like(numbers).index_copy_(0, order, numbers).view(rank_TX.shape)
    return torch.where(rank_TX >= 0, places_TX - (rank_TX < 0).sum(dtype=torch.int32), -1)


def _row_places(goes_RT: Tensor) -> Tensor:
    """int32 [T, R]"""
    number_RT = (goes_RT.flatten().cumsum(0, dtype=torch.int32) - 1).view(goes_RT.shape)
    return torch.where(goes_RT, number_RT, -1).T.contiguous()
