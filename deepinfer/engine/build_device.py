"""The engine's parts for an accelerator: the model of fused operations, its caches, and the executor that launches them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.build_balancer import build_balancer
from deepinfer.engine.build_device_reach import device_reach
from deepinfer.engine.build_local import Parts
from deepinfer.engine.build_model import tensor_names, token_classes
from deepinfer.engine.build_spread import device_dispatch_of
from deepinfer.engine.device import StepOutOfMemory
from deepinfer.engine.device_assembly import Loaded, assemble, in_step
from deepinfer.engine.device_memory import use_growing_pieces, within_memory
from deepinfer.engine.device_warm_up import warm_up
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.long_wait import explained

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from deepinfer.engine.build_seat import Seat
    from deepinfer.engine.build_spread import RankPart
    from deepinfer.engine.memory_profile import Fitted
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.ops.device import DeviceOps
    from deepinfer.plan.types import Plan, RankMemory
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.sampler import Sampler
    from deepinfer.speculation.calibration import Calibration


Made = TypeVar("Made")
TIGHT_SHARE = 0.25  # of the usable memory; where more is left over, nobody has to know exactly


def device_parts(
    plan: Plan,
    limits: EngineLimits,
    folder: Path | None,
    sampler: Sampler,
    grammar: GrammarDesk | None,
    ops: DeviceOps | None = None,
    *,
    guard: bool = False,
    seat: Seat | None = None,
) -> Parts:
    """Load the weights onto the device as they are stored, allocate the caches, wire the lanes.

    `ops` None: those of the plan on its GPU; else these, on a CPU where the plan is for one. `seat`: of this rank among
    several, whose device is the current one; all of them do this together.
    """
    notices: list[str] = []
    use_growing_pieces(_device(plan))
    if ops is None:
        ops, said = _ops(plan)
        notices += said
    loaded = _with_room(plan, lambda: _load(plan, limits, folder, sampler, grammar, ops, seat))
    if loaded.calibration is not None and loaded.calibration.notice:
        notices.append(loaded.calibration.notice)
    balancer = None if seat is None else build_balancer(plan, seat, loaded.dispatch, loaded.model.device)
    num_blocks = loaded.memory.num_blocks
    with explained("compiling kernels for this GPU; later runs find them in the cache", on=loaded.graphs):
        if loaded.graphs and any(map(_is_tight, plan.memory)):
            fitted = _fitted(loaded)
            num_blocks = fitted.num_blocks
            notices += fitted.notices
        executor = _with_room(plan, lambda: assemble(loaded, num_blocks, guard=guard))
        warm_up_s = _with_room(plan, lambda: warm_up(executor, limits, in_step(executor, loaded)))
    return Parts(
        model=loaded.model,
        cache=executor.cache,
        executor=executor,
        waits=executor.sampling.waits,
        balancer=balancer,
        num_blocks=num_blocks,
        warm_up_s=warm_up_s if loaded.graphs else 0.0,
        notices=tuple(notices),
    )


def _with_room(plan: Plan, work: Callable[[], Made]) -> Made:
    """What `work` makes. Raises Refused where the device has no memory for it."""
    try:
        return within_memory(work, _device(plan))
    except StepOutOfMemory as error:
        memory = plan.memory[0]
        why = f"weights, state and cache are planned to take {memory.device_bytes / 2**30:,.1f} GiB of it"
        fix = f"cache.num_blocks={max(1, memory.num_blocks // 2)}"
        problem = Problem(
            asked=f"{plan.model.name} on {plan.hardware.name}", found=str(error), why=why, fix=fix, code=ExitCode.MEMORY
        )
        raise Refused([problem]) from None


def _device(plan: Plan) -> torch.device:
    import torch

    if plan.hardware.kind != "cuda" or plan.layout.num_ranks == 1:
        return torch.device(plan.hardware.kind)
    return torch.device("cuda", torch.cuda.current_device())


def _is_tight(memory: RankMemory) -> bool:
    """Whether the plan leaves so little of the device that its estimates have to be right."""
    return memory.headroom_bytes < TIGHT_SHARE * (memory.headroom_bytes + memory.device_bytes)


def _fitted(loaded: Loaded) -> Fitted:
    """As many blocks as fit beside the worst step, measured on an executor with a few."""
    import torch

    from deepinfer.engine.memory_profile import fit_blocks, measured

    plan = loaded.plan
    profile = _with_room(plan, lambda: measured(loaded))
    gc.collect()
    torch.cuda.empty_cache()
    return fit_blocks(profile, loaded.memory, plan.cache.padded_block_bytes)


def _load(
    plan: Plan,
    limits: EngineLimits,
    folder: Path | None,
    sampler: Sampler,
    grammar: GrammarDesk | None,
    ops: DeviceOps,
    seat: Seat | None,
) -> Loaded:
    device, module, calibration = _device(plan), None, None
    groups = None if seat is None else seat.shared
    dispatch = device_dispatch_of(plan, groups, ops, device)
    stored, classes = _stored(plan, folder, None if groups is None else groups.part(plan))
    reached = {"dispatch": dispatch, **device_reach(plan, groups, device)}
    model = _model(plan, stored, classes, ops, device, reached)
    if plan.drafting.num_draft_layers:
        from deepinfer.model.fused.dspark import FusedDSpark

        calibration = _calibration(plan, folder)
        module = FusedDSpark(plan.model.config, stored, ops, model, layout=plan.cache, dispatch=dispatch)
    return Loaded(
        plan=plan,
        memory=plan.memory[0] if seat is None else seat.memory,
        limits=limits,
        sampler=sampler,
        grammar=grammar,
        model=model,
        draft_module=module,
        calibration=calibration,
        graphs=device.type == "cuda" and ops.name != "twins",  # which wait for the device inside
        dispatch=dispatch,
        tables=reached.get("tables"),
        meeting=None if seat is None else seat.meeting,
        alone=seat is None or seat.shape.context == 1,
    )


def _ops(plan: Plan) -> tuple[DeviceOps, tuple[str, ...]]:
    """The plan's one backend as fused operations, and what the user should know of them."""
    import torch

    from deepinfer.ops.device import twins
    from deepinfer.ops.device_choice import device_ops, refusals

    (backend,) = {choice.backend for choice in plan.ops}
    if backend == "reference":
        return twins(), ()
    asked = plan.model.config, getattr(torch, plan.numerics.dtype)
    blocks = plan.cache.block_tokens
    if problems := refusals(*asked, block_tokens=blocks):
        why = "; ".join(problems)
        raise Refused([Problem(asked=f"kernels={backend}", found=why, fix="kernels=reference", code=ExitCode.OTHER)])
    ops, general = device_ops(*asked, block_tokens=blocks)
    if not general:
        return ops, ()
    told = f"{len(general)} groups of operations have general kernels, which are slower than those for V4.1's widths"
    return ops, (f"{told}: deepinfer plan names them",)


def _stored(plan: Plan, folder: Path | None, part: RankPart | None) -> tuple[dict[str, Tensor], np.ndarray | None]:
    """Weights as a checkpoint holds them, all or one rank's part of them, on the host, and the classes of tokens."""
    config, names, rows = plan.model.config, tensor_names(plan, part), None if part is None else part.rows
    if plan.model.weights == "dummy":
        from deepinfer.model.checkpoint.dummy import dummy_stored

        classes = np.arange(config.vocab_size) % config.engram_compressed_vocab_size
        return dummy_stored(config, names, rows=rows), classes
    from deepinfer.model.checkpoint.reader import open_checkpoint
    from deepinfer.model.checkpoint.weights import load_stored

    assert folder is not None, "a checkpoint has a folder"
    checkpoint = open_checkpoint(folder)
    return load_stored(checkpoint, names, rows=rows), token_classes(checkpoint)


def _model(
    plan: Plan,
    stored: dict[str, Tensor],
    classes: np.ndarray | None,
    ops: DeviceOps,
    device: torch.device,
    reached: dict[str, Any],
) -> FusedModel:
    from deepinfer.model.fused.model import FusedModel

    return FusedModel(
        plan.model.config,
        stored,
        ops,
        layout=plan.cache,
        device=device,
        token_classes=classes,
        compact=plan.numerics.replay == "compact",
        max_positions=plan.model.max_model_len,
        **reached,
    )


def _calibration(plan: Plan, folder: Path | None) -> Calibration:
    from deepinfer.speculation.calibration import read_calibration

    return read_calibration(folder, plan.numerics.verify, plan.model.config.dspark_block_size)
