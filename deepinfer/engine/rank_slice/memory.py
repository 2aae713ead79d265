"""What a rank of true width holds, and what its largest steps take besides, measured as an engine measures itself.

The rank's model gets an engine's executor, caches of a few blocks and graphs; the worst steps run on it, with the pairs of the
rank that gets most.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from msgspec import structs

from deepinfer.engine.build import limits_of
from deepinfer.engine.device_assembly import Loaded
from deepinfer.engine.memory_profile import measured, planned_bytes
from deepinfer.sampling.sampler import Sampler
from deepinfer.speculation.calibration import Calibration

if TYPE_CHECKING:
    from deepinfer.engine.rank_slice.model import SliceModel
    from deepinfer.plan.types import Plan, RankMemory


@dataclass(frozen=True, kw_only=True)
class RankBytes:
    """Bytes of one rank without cache blocks. `held` stays between steps, `step` is what the largest of them has besides.

    `outside`: of the device, that torch's allocator knows nothing of: the driver's context, code of kernels, and whatever
    other processes hold.
    """

    planned_held: int
    held: int
    planned_step: int
    step: int
    outside: int

    @property
    def apart(self) -> float:
        """By how much of the measured total the plan is off, above zero where it says too little."""
        total = self.held + self.step
        return (total - self.planned_held - self.planned_step) / total


def measure_rank(plan: Plan, memory: RankMemory, share: SliceModel) -> RankBytes:
    """Run the worst steps of the plan's limits on `share`, whose rank has `memory`. Raises Refused where they do not fit."""
    share.route("skewed")
    profile = measured(_loaded(structs.replace(plan, memory=(memory,)), share))
    share.route("balanced")
    gc.collect()
    torch.cuda.empty_cache()
    apart = tuple(item for item in memory.items if item.name != "exchange")  # a slice exchanges nothing
    planned = planned_bytes(structs.replace(memory, items=apart))
    return RankBytes(
        planned_held=planned.held,
        held=profile.held,
        planned_step=planned.step,
        step=profile.step,
        outside=profile.outside,
    )


def _loaded(plan: Plan, share: SliceModel) -> Loaded:
    config, limits, drafts = plan.model.config, limits_of(plan), share.drafter is not None
    return Loaded(
        plan=plan,
        memory=plan.memory[0],
        limits=limits,
        sampler=Sampler(limits.vocab_size, limits.max_num_seqs, limits.eos_token_ids, None),
        grammar=None,
        model=share.model,
        draft_module=share.drafter,
        calibration=Calibration((), config.dspark_block_size) if drafts else None,
        graphs=share.model.device.type == "cuda",
    )
