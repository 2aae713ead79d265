"""The model of a plan with its weights and ops, and where its checkpoint lies."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.config.facts import shipped_folder
from deepinfer.engine.build_spread import RankGroups, RankPart, reach
from deepinfer.engine.unbuilt import is_simulated

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.checkpoint.reader import Checkpoint
    from deepinfer.model.v41 import V41Model
    from deepinfer.ops import Ops
    from deepinfer.parallel.all_to_all import AllToAllDispatch
    from deepinfer.plan.types import Plan


@dataclass(frozen=True)
class LoadedModel:
    """A model, and the weights it was built from: the drafter shares some of them, and `dispatch` where experts are spread."""

    model: V41Model
    weights: Mapping[str, Tensor]
    ops: Ops
    dispatch: AllToAllDispatch | None = None


def checkpoint_folder(plan: Plan, groups: RankGroups | None = None) -> Path | None:
    """Where the checkpoint lies on this machine, fetched from the hub first if need be: all of it, or the shards of one rank.
    Dummy weights have none of their own, but a model that ships with the package lends its tokenizer."""
    model = plan.model
    if model.source == "folder":
        return Path(model.location).expanduser()
    if model.source == "hub" and not is_simulated(plan):
        from deepinfer.model.checkpoint.hub import fetch_checkpoint
        from deepinfer.model.checkpoint.progress import showing_bytes

        repo, _, revision = model.location.partition("@")
        names = tensor_names(plan, None if groups is None else groups.part(plan))
        with showing_bytes(f"fetching {model.location}") as report:
            return fetch_checkpoint(repo, revision, names=names, progress=report)
    shipped = shipped_folder(model.name)
    return shipped if shipped.is_dir() else None


def load_model(plan: Plan, folder: Path | None, groups: RankGroups | None = None) -> LoadedModel:
    """The whole model, or what one rank of several holds of it, within its `groups`.

    Raises CheckpointErrors where the weights are not what the plan computes with.
    """
    import torch

    from deepinfer.model.v41 import V41Model

    numerics = plan.numerics
    torch.set_num_threads(numerics.threads)
    weights, classes = _weights(plan, folder, None if groups is None else groups.part(plan))
    ops = _ops(plan)
    reached = {} if groups is None else reach(plan, groups, ops)
    model = V41Model(
        plan.model.config,
        weights,
        ops,
        numerics=numerics.numerics,
        dtype=numerics.dtype,
        layout=plan.cache,
        token_classes=classes,
        compact=numerics.replay == "compact",
        **reached,
    )
    return LoadedModel(model, weights, ops, reached.get("dispatch"))


def _weights(plan: Plan, folder: Path | None, part: RankPart | None) -> tuple[Mapping[str, Tensor], np.ndarray | None]:
    """Weights, all or one rank's part of them, and the classes of tokens that n-gram tables are addressed by."""
    import torch

    names, rows = tensor_names(plan, part), None if part is None else part.rows
    config, dtype = plan.model.config, getattr(torch, plan.numerics.dtype)
    if plan.model.weights == "dummy":
        from deepinfer.model.checkpoint.dummy import dummy_weights

        classes = np.arange(config.vocab_size) % config.engram_compressed_vocab_size
        return dummy_weights(config, names, rows=rows, dtype=dtype), classes
    from deepinfer.model.checkpoint.reader import open_checkpoint
    from deepinfer.model.checkpoint.weights import load_weights

    assert folder is not None, "a checkpoint has a folder"
    checkpoint = open_checkpoint(folder)
    return load_weights(checkpoint, names, rows=rows, dtype=dtype), token_classes(checkpoint)


def token_classes(checkpoint: Checkpoint) -> np.ndarray | None:
    from deepinfer.model.checkpoint.errors import CheckpointErrors

    if checkpoint.engram_classes is None and checkpoint.config.engram_layer_ids:
        why = "tokenizer.json is missing: the n-gram tables are addressed by classes of its tokens"
        raise CheckpointErrors(checkpoint.path, {"tokenizer": [why]})
    return checkpoint.engram_classes


def tensor_names(plan: Plan, part: RankPart | None = None) -> list[str]:
    """Weights that this plan computes with, or one rank of it: the draft module only where something is drafted."""
    from deepinfer.model.checkpoint.weights import weight_specs

    drafts = plan.drafting.num_draft_layers > 0
    names = [spec.name for spec in weight_specs(plan.model.config) if drafts or spec.group != "draft"]
    return names if part is None else part.names(names)


def _ops(plan: Plan) -> Ops:
    """The plan's choice of backend for each op, as one record that computes in the dtypes common to all of them."""
    records = {
        backend: load_implementation(backend)() for backend in sorted({choice.implementation for choice in plan.ops})
    }
    return replace(
        records[plan.ops[0].implementation],
        name="+".join(record.name for record in records.values()),
        dtypes=frozenset.intersection(*(record.dtypes for record in records.values())),
        **{choice.op: getattr(records[choice.implementation], choice.op) for choice in plan.ops},
    )


def load_implementation(implementation: str) -> Callable[..., Any]:
    """The object that "module:attribute" names."""
    module, _, attribute = implementation.partition(":")
    return getattr(importlib.import_module(module), attribute)
