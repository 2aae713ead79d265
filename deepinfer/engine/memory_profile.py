"""What a GPU really holds, measured by its worst steps, and how many cache blocks fit into the rest.

The plan's figures stand beside the measured ones; where they are further apart than `CLOSE`, a sentence says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from msgspec import structs

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.device import StepClocked, StepOutOfMemory
from deepinfer.engine.device_assembly import Loaded, assemble, in_step
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.device_memory import held_bytes
from deepinfer.engine.device_warm_up import warm_up
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.worst_steps import run_worst_steps

if TYPE_CHECKING:
    from deepinfer.plan.types import RankMemory

CLOSE = 0.02  # of the measured bytes
RESERVE_SHARE = 0.01  # of the device's memory, for graphs of sizes that come later and for what libraries take
PROBE_BLOCKS = 64  # of a cache that only the worst steps see
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Bytes of one device.

    `held`: allocated between steps without cache blocks: weights, states, tables, what graphs keep. `step`: most that the worst
    steps had besides. `blocks`: of the cache blocks that there were. `free`: that nobody has. `total`: of the device.
    `outside`: of the rest, what torch's allocator knows nothing of: the driver's context, kernels' code, other processes.
    """

    held: int
    step: int
    blocks: int
    free: int
    total: int
    outside: int = 0

    @property
    def for_blocks(self) -> int:
        """What cache blocks may take once those of the probe are gone."""
        return max(0, self.free + self.blocks - self.step - int(RESERVE_SHARE * self.total))

    @property
    def needed(self) -> int:
        """Without cache blocks."""
        return self.held + self.step


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Blocks that the engine gets, and what the user should know of it."""

    num_blocks: int
    notices: tuple[str, ...] = ()


class PlannedBytes(NamedTuple):
    """What a plan says of a rank without cache blocks: as `MemoryProfile` splits it."""

    held: int
    step: int


def planned_bytes(memory: RankMemory) -> PlannedBytes:
    device = sum(item.num_bytes for item in memory.items if item.place == "device" and item.name != "kv_pool")
    return PlannedBytes(device - memory.step_bytes, memory.step_bytes)


def probe_blocks(memory: RankMemory, limits: EngineLimits) -> int:
    """Blocks of the cache that is profiled: few, for the rest is what is asked after; no more than there will be."""
    return min(memory.num_blocks, max(PROBE_BLOCKS, limits.max_num_seqs))


def measured(loaded: Loaded) -> MemoryProfile:
    """Of an executor with a cache of a few blocks. Raises Refused where the device's memory does not suffice for its steps."""
    few = probe_blocks(loaded.memory, loaded.limits)
    limits = structs.replace(loaded.limits, num_blocks=few)
    executor = assemble(loaded, few)
    steps = in_step(executor, loaded)
    try:
        warm_up(executor, limits, steps)
        return profile_memory(executor, limits, steps)
    finally:
        executor.close()


def profile_memory(executor: DeviceExecutor, limits: EngineLimits, steps: StepClocked | None = None) -> MemoryProfile:
    """Run the worst steps of `limits` on the executor's GPU, through `steps` where other ranks do the same. Raises Refused
    where the device's memory does not suffice."""
    device = executor.device
    assert device.type == "cuda", "only a GPU's memory is counted"
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    try:
        run_worst_steps(executor, limits, steps)
        torch.cuda.synchronize(device)
    except (torch.OutOfMemoryError, StepOutOfMemory) as error:
        raise Refused([_too_large(limits, device)]) from error
    peak, allocated = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    blocks = executor.cache.blocks.nbytes
    return MemoryProfile(
        held=held_bytes(device) - blocks,
        step=peak - allocated,
        blocks=blocks,
        free=free,
        total=total,
        outside=total - free - torch.cuda.memory_reserved(device),
    )


def fit_blocks(profile: MemoryProfile, memory: RankMemory, block_bytes: int, wanted: int | None = None) -> Fitted:
    """As many blocks as were planned, or as fit. `wanted`: most that are of use where the plan was short of memory.

    Raises Refused where not one block fits.
    """
    room = profile.for_blocks // block_bytes
    asked = memory.num_blocks if wanted is None else wanted
    if room < 1:
        problem = Problem(
            asked=f"cache.memory_bytes=auto with {_said(profile.total)} of device memory",
            found=f"weights, states and the largest step take {_said(profile.needed)}, which leaves no block of the cache",
            why="measured by a step of the longest context with a full batch",
            fix="scheduler.max_num_seqs or scheduler.max_num_batched_tokens lower, or model.max_model_len lower",
            code=ExitCode.MEMORY,
        )
        raise Refused([problem])
    num_blocks = min(asked, room)
    notices = list(_differences(profile, memory))
    if num_blocks != memory.num_blocks:
        notices.append(
            f"cache.memory_bytes=auto: {num_blocks:,} blocks where the plan has {memory.num_blocks:,}; measured on the device, "
            f"{_said(profile.for_blocks)} are left beside weights and the largest step"
        )
    return Fitted(num_blocks=num_blocks, notices=tuple(notices))


def _differences(profile: MemoryProfile, memory: RankMemory) -> list[str]:
    """Where plan and device are further apart than `CLOSE`."""
    planned = planned_bytes(memory)
    apart = profile.needed - sum(planned)
    if abs(apart) <= CLOSE * profile.needed:
        return []
    return [
        f"memory: the plan has {_said(sum(planned))} beside cache blocks, measured were {_said(profile.needed)} "
        f"({apart / profile.needed:+.1%}): held {_said(profile.held)} (planned {_said(planned.held)}), the largest step "
        f"{_said(profile.step)} (planned {_said(planned.step)}, an estimate); the measured figures were used"
    ]


def _too_large(limits: EngineLimits, device: torch.device) -> Problem:
    free, total = torch.cuda.mem_get_info(device)
    return Problem(
        asked=f"scheduler.max_num_batched_tokens={limits.max_num_batched_tokens}",
        found=f"the largest step does not fit: of {_said(total)} {_said(free)} were free when memory ran out",
        why="a step of the longest context with a full batch is run once before the first request",
        fix=f"scheduler.max_num_batched_tokens={max(limits.max_num_seqs, limits.max_num_batched_tokens // 2)}",
        code=ExitCode.MEMORY,
    )


def _said(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB" if abs(num_bytes) >= 2**30 else f"{num_bytes / MIB:,.1f} MiB"
