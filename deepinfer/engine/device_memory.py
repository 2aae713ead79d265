"""Work on a device whose memory may not suffice: it is done, or all that it made is free again and the caller is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from deepinfer.engine.device import StepOutOfMemory
from deepinfer.model.fused.memory_errors import is_out_of_memory

Result = TypeVar("Result")
MIB = 2**20
GROWING = "expandable_segments:True"  # of torch's allocator; graphs of rising sizes then share one piece of memory


def use_growing_pieces(device: torch.device) -> None:
    """From now on memory comes in pieces that grow, of which less is lost between what lies in them. A GPU's alone."""
    if device.type == "cuda" and hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        torch._C._accelerator_setAllocatorSettings(GROWING)


def held_bytes(device: torch.device) -> int:
    """Bytes that are allocated, and those that graphs keep without using them between replays."""
    ordinary, unused = (0, 0), 0
    for segment in torch.cuda.memory_snapshot():
        if segment["device"] == (device.index or 0) and tuple(segment["segment_pool_id"]) != ordinary:
            unused += segment["total_size"] - segment["allocated_size"]
    return torch.cuda.memory_allocated(device) + unused


def within_memory(work: Callable[[], Result], device: torch.device) -> Result:
    """What `work` returns. Raises StepOutOfMemory where memory ran out; what `work` had made is given back before."""
    try:
        return work()
    except (RuntimeError, ValueError) as error:
        if not is_out_of_memory(error):
            raise
    # Outside of the handler: its traceback would hold on to all that the work had made.
    raise StepOutOfMemory(give_back(device))


def if_memory_suffices(work: Callable[[], Result], device: torch.device) -> Result | None:
    """The same for what can be done without: None where memory ran out."""
    try:
        return within_memory(work, device)
    except StepOutOfMemory:
        return None


def give_back(device: torch.device) -> str:
    """Memory that torch holds without using it goes back to the device; returns what it has, in words.

    Waits for what was launched: nobody will ask for its results, and the host may write to its pinned buffers again.
    """
    if device.type != "cuda":
        return "the device's memory ran out"
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return f"memory ran out on a device of {total // MIB:,} MiB, {free // MIB:,} MiB of which are free now"
