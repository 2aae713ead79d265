"""What the ranks of one group say to each other: a handful of collectives, the same over gloo, NCCL and HCCL.

All ranks of a group make the same calls in the same order. Only bytes of tensors travel; nothing is ever unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

# Into one tensor: into a list, a backend may copy once more. Its older name is deprecated where the newer is known.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

Result = TypeVar("Result")
Pending = Callable[[], "Tensor"]  # waits for a collective that runs beside its caller, and gives its result


# What torch says before anything travels: plain RuntimeErrors, as those of a transport that broke.
_OWN_FAULT = re.compile(
    r"ProcessGroup\w*::|[Ss]plit sizes|tensor splits|Could not run|[Tt]ensors? (must|is not|are not|list)"
)


class PeerLost(RuntimeError):
    """A collective failed: a rank of the group ended, hangs, or cannot be reached."""


class Peers(Protocol):
    """One rank's view of its group. Results are new tensors."""

    rank: int  # of the group, not of the world
    size: int

    def all_gather(self, x: Tensor) -> Tensor:
        """[size, *x.shape]: everybody's x; all have one shape and dtype."""

    def begin_all_gather(self, x: Tensor) -> Pending:
        """`all_gather` that runs beside its caller. Nothing waits on the host where the group is a device's."""

    def all_to_all(self, x: Tensor) -> Tensor:
        """x [size, …]: x[i] goes to rank i. Returns the same shape: what each rank sent here."""

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Pending:
        """rows [sum(send), R], sorted by destination: the first send[0] go to rank 0, and so on. Begins, and returns
        [sum(receive), R] by source once it is called. Lengths may be 0; R and the dtype are everybody's."""

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """`source`'s x everywhere; all have its shape and dtype."""


class TorchPeers:
    """Peers over a process group of torch.distributed. Raises PeerLost out of every call that fails."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def all_gather(self, x: Tensor) -> Tensor:
        out = x.new_empty((self.size, *x.shape))
        finished(lambda: dist.all_gather(list(out.unbind(0)), x.contiguous(), group=self.group))
        return out

    def begin_all_gather(self, x: Tensor) -> Pending:
        out, x = x.new_empty((self.size, *x.shape)), x.contiguous()
        work = finished(lambda: _gather(out.flatten(0, 1), x, group=self.group, async_op=True))
        return _pending(work, out)

    def all_to_all(self, x: Tensor) -> Tensor:
        assert len(x) == self.size, "one row for each rank"
        out = torch.empty_like(x)
        finished(lambda: dist.all_to_all_single(out, x.contiguous(), group=self.group))
        return out

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Pending:
        assert len(rows) == sum(send) and len(send) == len(receive) == self.size, "rows of each rank"
        out, rows = rows.new_empty(sum(receive), *rows.shape[1:]), rows.contiguous()
        counts = list(receive), list(send)
        work = finished(lambda: dist.all_to_all_single(out, rows, *counts, group=self.group, async_op=True))
        return _pending(work, out)

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        finished(lambda: dist.broadcast(out, group_src=source, group=self.group))
        return out


def _pending(work: dist.Work, out: Tensor) -> Pending:
    def wait() -> Tensor:
        finished(work.wait)
        return out

    return wait


def finished(call: Callable[[], Result]) -> Result:
    """What a call of torch.distributed returns. Raises PeerLost for its RuntimeErrors, except those that say that this rank's
    own tensors are wrong."""
    try:
        return call()
    except RuntimeError as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not isinstance(error, dist.DistError) and _OWN_FAULT.search(text):
            raise
        raise PeerLost(text) from error
