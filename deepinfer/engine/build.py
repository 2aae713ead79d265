"""From a plan to a running engine: the only place below the command line that reads a Plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import structs

from deepinfer.engine.build_grammar import build_grammar, why_no_grammar
from deepinfer.engine.build_local import Parts, local_parts
from deepinfer.engine.build_model import checkpoint_folder
from deepinfer.engine.build_prefix import build_prefix
from deepinfer.engine.build_seat import Seat
from deepinfer.engine.build_speculation import build_lengths, decode_state
from deepinfer.engine.clocks import Clock, RealClock
from deepinfer.engine.device import TimedExecutor
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_distributed import DistributedExecutor
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.serving_executor import ServingExecutor
from deepinfer.engine.unbuilt import is_simulated, refuse_unbuilt
from deepinfer.sampling.tokenizer import BpeTokenizer

if TYPE_CHECKING:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.v41 import V41Model
    from deepinfer.ops.device import DeviceOps
    from deepinfer.parallel.eplb.balancer import EplbBalancer
    from deepinfer.plan.types import Plan, RankMemory
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class EngineGraph:
    """The parts of a built engine. A simulated one has no model, caches and sampler."""

    plan: Plan
    limits: EngineLimits
    tokenizer: BpeTokenizer | None
    model: V41Model | FusedModel | None
    cache: ModelCache | None
    sampler: Sampler | None
    executor: TimedExecutor
    engine: Engine
    num_engines: int = 1  # this one
    balancer: EplbBalancer | None = None  # where experts move
    in_step: DistributedExecutor | None = None  # where steps run together with those of other ranks
    warm_up_s: float = 0.0  # mostly compilation, at the first run on a machine
    notices: tuple[str, ...] = ()  # what the user should know of how it was built


def build_graph(
    plan: Plan,
    *,
    seat: Seat | None = None,
    poison_freed: bool = False,
    device_ops: DeviceOps | None = None,
    real_time: bool = False,
) -> EngineGraph:
    """Load the weights, allocate the caches, wire the parts. `seat` is this process's among the ranks of a plan of several.

    For tests: `poison_freed` fills every freed block and slot with NaN bytes and fails what waits for a device while a step
    is launched (see `LaunchGuard`), and `device_ops` builds the engine of an
    accelerator from these operations on the plan's CPU. `real_time`: the steps of a simulation pass on the machine's clock.
    Raises Refused for options whose code is not in this version,
    CheckpointErrors and HubError where the weights cannot be had.
    """
    refuse_unbuilt(plan)
    limits = limits_of(plan, None if seat is None else seat.memory)
    if is_simulated(plan):
        return _simulated(plan, limits, poison_freed, RealClock() if real_time else None)
    folder = checkpoint_folder(plan, None if seat is None else seat.shared)
    tokenizer = _tokenizer_in(folder)
    sampler = sampler_of(limits, tokenizer)
    grammar = build_grammar(plan, tokenizer)
    made = plan, limits, folder, sampler, grammar
    parts = _parts(*made, seat, device_ops, guard=poison_freed)
    limits = structs.replace(limits, num_blocks=parts.num_blocks)
    placed, in_step = parts.executor, None
    if seat is not None:
        placed, in_step = seat.placed(cast(ServingExecutor, parts.executor), parts.balancer)
    lengths, notices = build_lengths(plan, limits, placed, None if seat is None else seat.curve)
    executor: TimedExecutor = placed
    if limits.async_depth and parts.waits:
        executor = ThreadedExecutor(placed)
    return EngineGraph(
        plan=plan,
        limits=limits,
        tokenizer=tokenizer,
        model=parts.model,
        cache=parts.cache,
        sampler=sampler,
        executor=executor,
        engine=Engine(
            executor,
            limits,
            lengths=lengths,
            prefix=build_prefix(plan, limits.num_blocks, None if seat is None else seat.memory),
            grammar=grammar,
            no_grammar=why_no_grammar(plan),
            poison_freed=poison_freed,
        ),
        balancer=parts.balancer,
        in_step=in_step,
        warm_up_s=parts.warm_up_s,
        notices=(*parts.notices, *notices),
    )


def build_follower(
    plan: Plan, seat: Seat, device_ops: DeviceOps | None = None
) -> tuple[ServingExecutor, EplbBalancer | None]:
    """Executor and balancer of a rank that does what its leader does; scheduler, prefixes and grammars are the leader's."""
    limits, folder = limits_of(plan, seat.memory), checkpoint_folder(plan, seat.shared)
    parts = _parts(plan, limits, folder, sampler_of(limits, _tokenizer_in(folder)), None, seat, device_ops)
    return cast(ServingExecutor, parts.executor), parts.balancer


def _parts(
    plan: Plan,
    limits: EngineLimits,
    folder: Path | None,
    sampler: Sampler,
    grammar: GrammarDesk | None,
    seat: Seat | None,
    device_ops: DeviceOps | None,
    *,
    guard: bool = False,
) -> Parts:
    """Model, caches and executor on the plan's device; `device_ops` are played by this machine's processor."""
    made = plan, limits, folder, sampler, grammar
    if device_ops is None and plan.hardware.kind != "cuda":
        return local_parts(*made, seat=seat)
    from deepinfer.engine.build_device import device_parts

    return device_parts(*made, device_ops, guard=guard, seat=seat)


def limits_of(plan: Plan, memory: RankMemory | None = None) -> EngineLimits:
    """The engine's sizes as the plan settled them, of a rank with this memory (None: the plan's first)."""
    config, scheduler, memory = plan.model.config, plan.scheduler, memory or plan.memory[0]
    return EngineLimits(
        vocab_size=config.vocab_size,
        ngram_size=max(1, config.engram_max_ngram_size),
        max_model_len=plan.model.max_model_len,
        max_num_seqs=memory.num_state_slots,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_prefill_tokens=scheduler.max_prefill_tokens,
        num_blocks=memory.num_blocks,
        block_tokens=plan.cache.block_tokens,
        eos_token_ids=(config.eos_token_id,),
        watchdog_s=scheduler.watchdog_s,
        async_depth=int(scheduler.async_depth),
        draft_depth=plan.drafting.depth,
        replay=plan.numerics.replay,
        replay_keep=plan.numerics.replay_keep_tokens,
    )


def tokenizer_of(plan: Plan) -> BpeTokenizer | None:
    """The tokenizer that belongs to the plan's weights; None where there is none, and only token ids can be taken."""
    return _tokenizer_in(checkpoint_folder(plan))


def _simulated(plan: Plan, limits: EngineLimits, poison_freed: bool, clock: Clock | None) -> EngineGraph:
    settings = plan.node("executor").settings
    executor = SimulatedExecutor(
        vocab_size=limits.vocab_size,
        state=decode_state(plan, limits),
        step_time_s=float(settings["step_time_s"]),
        acceptance=float(settings["acceptance"]),
        clock=clock,
    )
    lengths, _ = build_lengths(plan, limits, None)
    engine = Engine(
        executor,
        limits,
        lengths=lengths,
        prefix=build_prefix(plan, limits.num_blocks),
        no_grammar=why_no_grammar(plan),
        poison_freed=poison_freed,
        clock=executor.clock.now,
    )
    tokenizer = tokenizer_of(plan)
    return EngineGraph(
        plan=plan,
        limits=limits,
        tokenizer=tokenizer,
        model=None,
        cache=None,
        sampler=None,
        executor=executor,
        engine=engine,
    )


def sampler_of(limits: EngineLimits, tokenizer: BpeTokenizer | None) -> Sampler:
    """One that knows what texts its tokens stand for, where there is a tokenizer."""
    from deepinfer.sampling.sampler import Sampler

    words = tokenizer.text_bytes(limits.vocab_size) if tokenizer else None
    return Sampler(limits.vocab_size, limits.max_num_seqs, limits.eos_token_ids, words)


def _tokenizer_in(folder: Path | None) -> BpeTokenizer | None:
    return BpeTokenizer(folder / "tokenizer.json") if folder and (folder / "tokenizer.json").is_file() else None
