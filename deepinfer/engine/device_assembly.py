"""An executor of a device from what was loaded: caches, lanes, drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepinfer.engine.build_speculation import decode_state, token_drafter, verifier_of
from deepinfer.engine.device_clock import DeviceClock
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.device_forward import ForwardLanes
from deepinfer.engine.device_sampling import DeviceLane, HostLane, SamplingLane
from deepinfer.engine.device_verifier import DeviceVerifier
from deepinfer.engine.limits import EngineLimits
from deepinfer.speculation.coupled import CoupledVerifier

if TYPE_CHECKING:
    import torch

    from deepinfer.engine.decode_state import DecodeState
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.decode_step import DecodeStep
    from deepinfer.model.fused.dspark import FusedDSpark
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.sampler import Sampler
    from deepinfer.speculation.calibration import Calibration
    from deepinfer.speculation.dspark_device import DeviceDSpark


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What does not depend on how many blocks the cache has. `graphs`: of kernels, whose launches wait for nothing."""

    plan: Plan
    limits: EngineLimits
    sampler: Sampler
    grammar: GrammarDesk | None
    model: FusedModel
    draft_module: FusedDSpark | None
    calibration: Calibration | None
    graphs: bool


def assemble(loaded: Loaded, num_blocks: int, *, guard: bool = False) -> DeviceExecutor:
    """An executor with a cache of so many blocks. `guard`: see `LaunchGuard`; twins wait inside a launch, and have none."""
    from deepinfer.model.fused.sequences import DeviceSequences

    plan, limits, model = loaded.plan, loaded.limits, loaded.model
    cache = _cache(plan, num_blocks, model.device)
    sizes = limits.max_num_seqs, limits.max_model_len, limits.ngram_size, limits.draft_depth
    sequences, state = DeviceSequences(*sizes, model.device), decode_state(plan, limits)
    drafter = _drafter(loaded, cache)
    decode = _decode_step(loaded, cache, sequences)
    lanes = ForwardLanes(model, cache, state, sequences, decode=decode, observer=drafter)
    sampling = _sampling(loaded, state, sequences, drafter)
    return DeviceExecutor(lanes, sampling, loaded.sampler, guard=guard and loaded.graphs, threads=plan.numerics.threads)


def _cache(plan: Plan, num_blocks: int, device: torch.device) -> ModelCache:
    from deepinfer.model.cache_storage import ModelCache

    memory = plan.memory[0]
    return ModelCache(
        plan.model.config,
        plan.cache,
        num_blocks=num_blocks,
        num_slots=memory.num_state_slots + 1,  # the last one is that of padded rows
        num_snapshots=memory.num_snapshots,
        device=device,
    )


def _decode_step(loaded: Loaded, cache: ModelCache, sequences: DeviceSequences) -> DecodeStep:
    from deepinfer.model.fused.decode_step import DecodeStep

    return DecodeStep(
        loaded.model,
        cache,
        sequences,
        verify_length=loaded.plan.drafting.verify_length,
        features=loaded.draft_module is not None,
        graphs=loaded.graphs,
    )


def _drafter(loaded: Loaded, cache: ModelCache) -> DeviceDSpark | None:
    if loaded.draft_module is None or loaded.calibration is None:
        return None
    from deepinfer.speculation.dspark_device import DeviceDSpark

    sampler = loaded.sampler
    return DeviceDSpark(
        loaded.draft_module,
        cache,
        depth=loaded.plan.drafting.depth,
        calibration=loaded.calibration,
        temperatures=sampler.temperatures,
        seeds=lambda slots: sampler.params.seed_N[slots],
        graphs=loaded.graphs,
    )


def _sampling(
    loaded: Loaded, state: DecodeState, sequences: DeviceSequences, drafter: DeviceDSpark | None
) -> SamplingLane:
    """One lane for the whole plan: the device's, unless somebody has to look at logits or tokens on the host."""
    plan, model, sampler = loaded.plan, loaded.model, loaded.sampler
    from deepinfer.engine.sampling_graphs import SamplingGraphs
    from deepinfer.sampling.device_rows import DeviceSampler

    tokens_only, logits, device = token_drafter(plan), model.logits, model.device
    on_device, verifier, steps = DeviceSampler(sampler, model.ops, device), verifier_of(plan, sampler), None
    coupled = isinstance(verifier, CoupledVerifier)
    if not coupled or tokens_only is not None:
        judge = DeviceVerifier(on_device, verifier, DeviceClock(device)) if coupled else verifier
        drafts = tokens_only or drafter
        return HostLane(judge, logits, state, sequences, device, drafter=drafts, grammar=loaded.grammar)
    if loaded.graphs:
        steps = SamplingGraphs(on_device, logits, sequences, verify_length=plan.drafting.verify_length, graphs=True)
    return DeviceLane(on_device, logits, state, sequences, device, drafter=drafter, graphs=steps)
