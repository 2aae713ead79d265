"""Which device of its host a rank computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer.config.env import settle_nccl
from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from deepinfer.plan.types import RankPlan

ON_DEVICES = ("cuda",)


def use_device(kind: str, rank: RankPlan) -> None:
    """Make the rank's device this process's own, before it talks to others; the processor needs no choice.

    A launcher may show each process a device of its own: then there is one, whatever its number on the host. Raises Refused
    where the device is not there.
    """
    if kind not in ON_DEVICES:
        return
    import torch

    number, shown = rank.device, torch.cuda.device_count()
    if number >= shown != 1:
        raise Refused([_hidden(number, shown)])
    settle_nccl()
    torch.cuda.set_device(0 if shown == 1 else number)


def _hidden(number: int, shown: int) -> Problem:
    return Problem(
        asked=f"device {number} of this node",
        found=f"this process sees {shown} devices" if shown else "this process sees no device",
        why="each rank has one to itself",
        fix="CUDA_VISIBLE_DEVICES unset, or with all of the plan's devices of a node",
        code=ExitCode.DEVICE,
    )
