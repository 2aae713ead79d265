"""From a plan to a running engine: the only place below the command line that reads a Plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.config.facts import shipped_folder
from deepinfer.engine.engine import Engine, TimedExecutor
from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.engine.executor_simulated import SimulatedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.unbuilt import is_simulated, refuse_unbuilt
from deepinfer.sampling.tokenizer import BpeTokenizer

if TYPE_CHECKING:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.checkpoint.reader import Checkpoint
    from deepinfer.model.v41 import V41Model
    from deepinfer.ops import Ops
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


def build_graph(plan: Plan, *, poison_freed: bool = False) -> EngineGraph:
    """Load the weights, allocate the caches, wire the parts.

    `poison_freed` fills every freed block and slot with NaN bytes, for tests. Raises Refused for options whose code is not
    in this version, CheckpointErrors and HubError where the weights cannot be had.
    """
    refuse_unbuilt(plan)
    limits = limits_of(plan)
    if is_simulated(plan):
        return _simulated(plan, limits, poison_freed)
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.warm_up import warm_up
    from deepinfer.sampling.sampler import Sampler

    folder = checkpoint_folder(plan)
    tokenizer = _tokenizer_in(folder)
    model = _model(plan, folder)
    memory = plan.memory[0]
    cache = ModelCache(plan.model.config, plan.cache, num_blocks=memory.num_blocks, num_slots=memory.num_state_slots)
    sampler = Sampler(
        limits.vocab_size,
        limits.max_num_seqs,
        limits.eos_token_ids,
        tokenizer.text_bytes(limits.vocab_size) if tokenizer else None,
    )
    executor = LocalExecutor(model, cache, sampler, threads=plan.numerics.threads)
    engine = Engine(executor, limits, poison_freed=poison_freed)
    return EngineGraph(
        plan=plan,
        limits=limits,
        tokenizer=tokenizer,
        model=model,
        cache=cache,
        sampler=sampler,
        executor=executor,
        engine=engine,
        warm_up_s=warm_up(model) if any(choice.backend == "native" for choice in plan.ops) else 0.0,
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
    )


def tokenizer_of(plan: Plan) -> BpeTokenizer | None:
    """The tokenizer that belongs to the plan's weights; None where there is none, and only token ids can be taken."""
    return _tokenizer_in(checkpoint_folder(plan))


def checkpoint_folder(plan: Plan) -> Path | None:
    """Where the checkpoint lies on this machine, fetched from the hub first if need be. Dummy weights have none of their
    own, but a model that ships with the package lends its tokenizer."""
    model = plan.model
    if model.source == "folder":
        return Path(model.location).expanduser()
    if model.source == "hub" and not is_simulated(plan):
        from deepinfer.model.checkpoint.hub import fetch_checkpoint
        from deepinfer.model.checkpoint.progress import showing_bytes

        repo, _, revision = model.location.partition("@")
        with showing_bytes(f"fetching {model.location}") as report:
            return fetch_checkpoint(repo, revision, names=_tensor_names(plan), progress=report)
    shipped = shipped_folder(model.name)
    return shipped if shipped.is_dir() else None


def _simulated(plan: Plan, limits: EngineLimits, poison_freed: bool) -> EngineGraph:
    executor = SimulatedExecutor(
        vocab_size=limits.vocab_size,
        num_slots=limits.max_num_seqs,
        step_time_s=float(_node(plan, "executor").settings["step_time_s"]),
    )
    engine = Engine(executor, limits, poison_freed=poison_freed, clock=executor.clock.now)
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


def _model(plan: Plan, folder: Path | None) -> V41Model:
    import torch

    from deepinfer.model.v41 import V41Model

    config, numerics = plan.model.config, plan.numerics
    names, dtype = _tensor_names(plan), getattr(torch, numerics.dtype)
    torch.set_num_threads(numerics.threads)
    if plan.model.weights == "dummy":
        from deepinfer.model.checkpoint.dummy import dummy_weights

        weights = dummy_weights(config, names, dtype=dtype)
        classes: np.ndarray | None = np.arange(config.vocab_size) % config.engram_compressed_vocab_size
    else:
        from deepinfer.model.checkpoint.reader import open_checkpoint
        from deepinfer.model.checkpoint.weights import load_weights

        assert folder is not None, "a checkpoint has a folder"
        checkpoint = open_checkpoint(folder)
        weights = load_weights(checkpoint, names, dtype=dtype)
        classes = _classes(checkpoint)
    return V41Model(
        config,
        weights,
        _ops(plan),
        numerics=numerics.numerics,
        dtype=numerics.dtype,
        layout=plan.cache,
        token_classes=classes,
    )


def _classes(checkpoint: Checkpoint) -> np.ndarray | None:
    from deepinfer.model.checkpoint.errors import CheckpointErrors

    if checkpoint.engram_classes is None and checkpoint.config.engram_layer_ids:
        why = "tokenizer.json is missing: the n-gram tables are addressed by classes of its tokens"
        raise CheckpointErrors(checkpoint.path, {"tokenizer": [why]})
    return checkpoint.engram_classes


def _tensor_names(plan: Plan) -> list[str]:
    """Weights that this plan computes with: the draft module only where something is drafted."""
    from deepinfer.model.checkpoint.weights import weight_specs

    drafts = plan.drafting.num_draft_layers > 0
    return [spec.name for spec in weight_specs(plan.model.config) if drafts or spec.group != "draft"]


def _ops(plan: Plan) -> Ops:
    """The plan's choice of backend for each op, as one record that computes in the dtypes common to all of them."""
    records = {backend: _load(backend)() for backend in sorted({choice.implementation for choice in plan.ops})}
    return replace(
        records[plan.ops[0].implementation],
        name="+".join(record.name for record in records.values()),
        dtypes=frozenset.intersection(*(record.dtypes for record in records.values())),
        **{choice.op: getattr(records[choice.implementation], choice.op) for choice in plan.ops},
    )


def _tokenizer_in(folder: Path | None) -> BpeTokenizer | None:
    return BpeTokenizer(folder / "tokenizer.json") if folder and (folder / "tokenizer.json").is_file() else None


def _node(plan: Plan, name: str) -> Node:
    return next(node for node in plan.graph if node.name == name)


def _load(implementation: str) -> Callable[..., Any]:
    module, _, attribute = implementation.partition(":")
    return getattr(importlib.import_module(module), attribute)
