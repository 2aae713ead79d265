"""The groups of a world's ranks, as process groups of torch.distributed: made by all ranks in one order, once.

Ranks of a world are numbered context fastest. Groups of one rank are None: it has nobody to talk to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from deepinfer.parallel.peers import Peers, TorchPeers, finished

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "ascend": "hccl"}  # of torch.distributed, by kind of hardware
HOST = "gloo"
FOREVER = timedelta(days=365)  # an idle rank waits; lost ones are found by their lines and by heartbeats


@dataclass(frozen=True, kw_only=True)
class WorldShape:
    """How the ranks of a world share a model. `tables`: all of them share n-gram tables; `moves`: experts may move."""

    attention_dp: int
    context: int
    expert: int
    tables: bool = False
    moves: bool = False

    @property
    def size(self) -> int:
        return self.attention_dp * self.context

    @property
    def in_step(self) -> bool:
        """Whether several leaders' forwards run together: they share experts or tables."""
        return self.attention_dp > 1 and (self.expert > self.context or self.tables)

    @property
    def shares_nothing(self) -> bool:
        """Whether no rank ever talks to another one."""
        return self.context == 1 and self.expert == 1 and not (self.tables and self.size > 1)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """One rank's groups; `leaders` and `control` talk on the host, the others where the model computes."""

    leaders: Peers | None = None  # ranks with context 0, where they run in step
    control: Peers | None = None  # ranks of one attention-DP index
    context: Peers | None = None  # the same ranks
    experts: Peers | None = None  # ranks that share experts
    moves: Peers | None = None  # the same ranks, for experts on their way
    tables: Peers | None = None  # ranks that share n-gram tables: all


def make_groups(store: Store, rank: int, shape: WorldShape, *, kind: str, backend: str = "auto") -> Groups:
    """Process groups of this rank, where ranks share anything. `kind` of hardware decides where `backend` is "auto".

    Raises PeerLost where another rank ends meanwhile or cannot be reached.
    """
    if shape.shares_nothing:
        return Groups()
    device = BACKENDS.get(kind, HOST) if backend == "auto" else backend
    place, size = PrefixStore("groups", store), shape.size
    finished(lambda: dist.init_process_group(device, store=place, rank=rank, world_size=size, timeout=FOREVER))
    everybody = [list(range(shape.size))]
    inner = [list(range(at, at + shape.context)) for at in range(0, shape.size, shape.context)]
    sharing = [list(range(at, at + shape.expert)) for at in range(0, shape.size, shape.expert)]
    leading = [list(range(0, shape.size, shape.context))] if shape.in_step else []

    def group_of(ranks: list[int], backend: str) -> dist.ProcessGroup:
        return finished(lambda: dist.new_group(ranks, backend=backend, timeout=FOREVER))

    def joined(groups: Sequence[list[int]], backend: str) -> Peers | None:
        mine = None
        for ranks in groups:
            group = group_of(ranks, backend) if len(ranks) > 1 else None
            if group is not None and rank in ranks:
                mine = TorchPeers(group)
        return mine

    return Groups(
        leaders=joined(leading, HOST),
        control=joined(inner, HOST),
        context=joined(inner, device),
        experts=joined(sharing, device),
        moves=joined(sharing, device) if shape.moves else None,
        tables=joined(everybody, device) if shape.tables else None,
    )


def leave_groups() -> None:
    """Free them, where any were made."""
    if dist.is_initialized():
        dist.destroy_process_group()
