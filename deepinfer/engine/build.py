"""From a plan to a running engine: the only place below the command line that reads a Plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.engine.build_grammar import build_grammar, why_no_grammar
from deepinfer.engine.build_model import checkpoint_folder, load_model
from deepinfer.engine.build_prefix import build_prefix
from deepinfer.engine.build_speculation import build_lengths, build_speculation, decode_state
from deepinfer.engine.device import TimedExecutor
from deepinfer.engine.engine import Engine
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.unbuilt import is_simulated, refuse_unbuilt
from deepinfer.sampling.tokenizer import BpeTokenizer

if TYPE_CHECKING:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.v41 import V41Model
    from deepinfer.plan.types import Node, Plan
    from deepinfer.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class EngineGraph:
    """The parts of a built engine. A simulated one has no model, caches and sampler."""

    plan: Plan
    limits: EngineLimits
    tokenizer: BpeTokenizer | None
    model: V41Model | None
    cache: ModelCache | None
    sampler: Sampler | None
    executor: TimedExecutor
    engine: Engine
    warm_up_s: float = 0.0  # mostly compilation, at the first run on a machine
    notices: tuple[str, ...] = ()  # what the user should know of how it was built


def build_graph(plan: Plan, *, poison_freed: bool = False) -> EngineGraph:
    """Load the weights, allocate the caches, wire the parts.

    `poison_freed` fills every freed block and slot with NaN bytes, for tests. Raises Refused for options whose code is not
    in this version, CheckpointErrors and HubError where the weights cannot be had.
    """
    refuse_unbuilt(plan)
    limits = limits_of(plan)
    if is_simulated(plan):
        return _simulated(plan, limits, poison_freed)
    from deepinfer.engine.executor_local import LocalExecutor
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.warm_up import warm_up
    from deepinfer.sampling.sampler import Sampler

    folder = checkpoint_folder(plan)
    tokenizer = _tokenizer_in(folder)
    loaded = load_model(plan, folder)
    memory = plan.memory[0]
    cache = ModelCache(
        plan.model.config,
        plan.cache,
        num_blocks=memory.num_blocks,
        num_slots=memory.num_state_slots,
        num_snapshots=memory.num_snapshots,
    )
    sampler = Sampler(
        limits.vocab_size,
        limits.max_num_seqs,
        limits.eos_token_ids,
        tokenizer.text_bytes(limits.vocab_size) if tokenizer else None,
    )
    warm_up_s = warm_up(loaded.model) if any(choice.backend == "native" for choice in plan.ops) else 0.0
    grammar = build_grammar(plan, tokenizer)
    speculation = build_speculation(plan, loaded, cache, sampler, folder)
    local = LocalExecutor(
        loaded.model,
        cache,
        sampler,
        speculation.verifier,
        decode_state(plan, limits),
        drafter=speculation.drafter,
        grammar=grammar,
        threads=plan.numerics.threads,
    )
    lengths, notices = build_lengths(plan, limits, local)
    executor: TimedExecutor = local
    if limits.async_depth:
        executor = ThreadedExecutor(local)
    return EngineGraph(
        plan=plan,
        limits=limits,
        tokenizer=tokenizer,
        model=loaded.model,
        cache=cache,
        sampler=sampler,
        executor=executor,
        engine=Engine(
            executor,
            limits,
            lengths=lengths,
            prefix=build_prefix(plan),
            grammar=grammar,
            no_grammar=why_no_grammar(plan),
            poison_freed=poison_freed,
        ),
        warm_up_s=warm_up_s,
        notices=(*speculation.notices, *notices),
    )


def limits_of(plan: Plan) -> EngineLimits:
    """The engine's sizes as the plan settled them."""
    config, scheduler, memory = plan.model.config, plan.scheduler, plan.memory[0]
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
        async_depth=scheduler.async_depth,
        draft_depth=plan.drafting.depth,
        replay=plan.numerics.replay,
        replay_keep=plan.numerics.replay_keep_tokens,
    )


def tokenizer_of(plan: Plan) -> BpeTokenizer | None:
    """The tokenizer that belongs to the plan's weights; None where there is none, and only token ids can be taken."""
    return _tokenizer_in(checkpoint_folder(plan))


def _simulated(plan: Plan, limits: EngineLimits, poison_freed: bool) -> EngineGraph:
    settings = _node(plan, "executor").settings
    executor = SimulatedExecutor(
        vocab_size=limits.vocab_size,
        state=decode_state(plan, limits),
        step_time_s=float(settings["step_time_s"]),
        acceptance=float(settings["acceptance"]),
    )
    lengths, _ = build_lengths(plan, limits, None)
    engine = Engine(
        executor,
        limits,
        lengths=lengths,
        prefix=build_prefix(plan),
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


def _tokenizer_in(folder: Path | None) -> BpeTokenizer | None:
    return BpeTokenizer(folder / "tokenizer.json") if folder and (folder / "tokenizer.json").is_file() else None


def _node(plan: Plan, name: str) -> Node:
    return next(node for node in plan.graph if node.name == name)
