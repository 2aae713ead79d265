"""The engine's parts that a plan's device decides: model, caches, executor; here those of a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.engine.build_balancer import build_balancer
from deepinfer.engine.build_model import load_model
from deepinfer.engine.build_speculation import build_speculation, decode_state
from deepinfer.engine.limits import EngineLimits

if TYPE_CHECKING:
    from deepinfer.engine.build_seat import Seat
    from deepinfer.engine.device import StepClocked
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.v41 import V41Model
    from deepinfer.parallel.eplb.balancer import EplbBalancer
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class Parts:
    """`waits`: the executor computes in its caller's thread, so that only a thread of its own overlaps with the host."""

    model: V41Model | FusedModel
    cache: ModelCache
    executor: StepClocked
    waits: bool
    balancer: EplbBalancer | None = None  # where experts lie on other ranks, too, and move
    num_blocks: int  # of the cache: those of the plan, or what a device turned out to have room for
    warm_up_s: float = 0.0
    notices: tuple[str, ...] = ()


def local_parts(
    plan: Plan,
    limits: EngineLimits,
    folder: Path | None,
    sampler: Sampler,
    grammar: GrammarDesk | None,
    seat: Seat | None = None,
) -> Parts:
    """Plain torch and compiled loops on this machine's processor; of the rank in `seat`, where there are several."""
    from deepinfer.engine.executor_local import LocalExecutor
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.warm_up import warm_up

    loaded = load_model(plan, folder, None if seat is None else seat.shared)
    memory = plan.memory[0] if seat is None else seat.memory
    cache = ModelCache(
        plan.model.config,
        plan.cache,
        num_blocks=memory.num_blocks,
        num_slots=memory.num_state_slots,
        num_snapshots=memory.num_snapshots,
    )
    warm_up_s = warm_up(loaded.model) if any(choice.backend == "native" for choice in plan.ops) else 0.0
    speculation = build_speculation(plan, loaded, cache, sampler, folder)
    executor = LocalExecutor(
        loaded.model,
        cache,
        sampler,
        speculation.verifier,
        decode_state(plan, limits),
        drafter=speculation.drafter,
        grammar=grammar,
        threads=plan.numerics.threads,
    )
    return Parts(
        model=loaded.model,
        cache=cache,
        executor=executor,
        waits=True,
        balancer=None if seat is None else build_balancer(plan, seat, loaded.dispatch),
        num_blocks=memory.num_blocks,
        warm_up_s=warm_up_s,
        notices=speculation.notices,
    )
