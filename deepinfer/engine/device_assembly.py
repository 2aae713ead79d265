"""An executor of a device from what was loaded: caches, lanes, drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from deepinfer.engine.build_speculation import decode_state, token_drafter, verifier_of
from deepinfer.engine.device import StepClocked
from deepinfer.engine.device_clock import DeviceClock
from deepinfer.engine.device_company import Company
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.device_forward import ForwardLanes
from deepinfer.engine.device_sampling import DeviceLane, HostLane, SamplingLane
from deepinfer.engine.device_verifier import DeviceVerifier
from deepinfer.engine.executor_distributed import DistributedExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import Verifier
from deepinfer.speculation.coupled import CoupledVerifier

if TYPE_CHECKING:
    from deepinfer.engine.decode_state import DecodeState
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.chunk_step import ChunkStep
    from deepinfer.model.fused.decode_step import DecodeStep
    from deepinfer.model.fused.dspark import FusedDSpark
    from deepinfer.model.fused.model import FusedModel
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.parallel.device_dispatch import DeviceDispatch
    from deepinfer.parallel.device_tables import DeviceTables
    from deepinfer.parallel.meeting import Meeting
    from deepinfer.plan.types import Plan, RankMemory
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.sampler import Sampler
    from deepinfer.speculation.calibration import Calibration
    from deepinfer.speculation.dspark_device import DeviceDSpark
    from deepinfer.speculation.proposals import Proposals


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What does not depend on how many blocks the cache has. `graphs`: of kernels, whose launches wait for nothing.

    `dispatch`, `tables`: of what lies on other ranks; `meeting`: of those that run their steps together; `alone`: no other rank
    has this one's rows.
    """

    plan: Plan
    memory: RankMemory
    limits: EngineLimits
    sampler: Sampler
    grammar: GrammarDesk | None
    model: FusedModel
    draft_module: FusedDSpark | None
    calibration: Calibration | None
    graphs: bool
    dispatch: DeviceDispatch | None = None
    tables: DeviceTables | None = None
    meeting: Meeting | None = None
    alone: bool = True


def assemble(loaded: Loaded, num_blocks: int, *, guard: bool = False) -> DeviceExecutor:
    """An executor with a cache of so many blocks. `guard`: see `LaunchGuard`; twins wait inside a launch, and have none."""
    from deepinfer.model.fused.sequences import DeviceSequences

    plan, limits, model = loaded.plan, loaded.limits, loaded.model
    cache = _cache(loaded, num_blocks)
    sizes = limits.max_num_seqs, limits.max_model_len, limits.ngram_size, limits.draft_depth
    sequences, state = DeviceSequences(*sizes, model.device), decode_state(plan, limits)
    proposals = _proposals(loaded, sequences)
    drafter = _drafter(loaded, cache, proposals)
    decode = _decode_step(loaded, cache, sequences, drafter)
    chunks = _chunk_step(loaded, cache, decode, drafter)
    lanes = ForwardLanes(model, cache, state, sequences, decode=decode, observer=drafter, chunks=chunks)
    sampling = _sampling(loaded, state, sequences, drafter, proposals)
    return DeviceExecutor(
        lanes,
        sampling,
        loaded.sampler,
        guard=guard and loaded.graphs,
        threads=plan.numerics.threads,
        company=_company(loaded, decode, chunks, drafter),
    )


def in_step(executor: DeviceExecutor, loaded: Loaded) -> StepClocked:
    """The executor as other ranks run theirs, for steps before there are requests."""
    return executor if loaded.meeting is None else DistributedExecutor(executor, loaded.meeting)


def _company(
    loaded: Loaded, decode: DecodeStep, chunks: ChunkStep | None, drafter: DeviceDSpark | None
) -> Company | None:
    """Those who share experts or n-gram tables with this rank."""
    if loaded.model.elsewhere is None:
        return None
    lanes = [decode.stats, *([] if chunks is None else [chunks.stats])]
    return Company(
        loaded.model,
        loaded.draft_module,
        dispatch=loaded.dispatch,
        tables=loaded.tables,
        graphs=loaded.graphs,
        pool=decode.graph_pool,
        replays=lambda: sum(stats.replays for stats in lanes) + (0 if drafter is None else drafter.num_replays),
        gives_up_alone=loaded.alone,
    )


def _cache(loaded: Loaded, num_blocks: int) -> ModelCache:
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.chunk_step import spare_states

    plan, memory = loaded.plan, loaded.memory
    return ModelCache(
        plan.model.config,
        plan.cache,
        num_blocks=num_blocks,
        num_slots=memory.num_state_slots + 1,  # the last one is that of padded rows
        num_snapshots=memory.num_snapshots,
        num_spare=spare_states(chunk_rows(loaded), plan.cache.ring_slots),
        device=loaded.model.device,
    )


def _decode_step(
    loaded: Loaded, cache: ModelCache, sequences: DeviceSequences, drafter: DeviceDSpark | None
) -> DecodeStep:
    from deepinfer.model.fused.decode_step import DecodeStep

    return DecodeStep(
        loaded.model,
        cache,
        sequences,
        verify_length=loaded.plan.drafting.verify_length,
        features=drafter is not None,
        observe=None if drafter is None else drafter.observe_rows,
        graphs=loaded.graphs,
    )


def chunk_rows(loaded: Loaded) -> list[int]:
    """Sizes of steps with chunks. None without graphs: padding serves nothing else."""
    from deepinfer.model.fused.chunk_step import chunk_sizes

    return chunk_sizes(loaded.limits.max_num_batched_tokens) if loaded.graphs else []


def _chunk_step(
    loaded: Loaded, cache: ModelCache, decode: DecodeStep, drafter: DeviceDSpark | None
) -> ChunkStep | None:
    """Its graphs never run beside those of the decode steps, and share their memory."""
    from deepinfer.model.fused.chunk_step import ChunkStep

    sizes = chunk_rows(loaded)
    if not sizes:
        return None
    return ChunkStep(
        loaded.model,
        cache,
        decode.sequences,
        row_sizes=sizes,
        verify_length=loaded.plan.drafting.verify_length,
        features=drafter is not None,
        observe=None if drafter is None else drafter.observe_rows,
        graphs=loaded.graphs,
        pool=decode.graph_pool,
    )


def _proposals(loaded: Loaded, sequences: DeviceSequences) -> Proposals | None:
    """Where rejection sampling keeps what the draft module's drafts are drawn from."""
    plan, params = loaded.plan, loaded.sampler.params
    if plan.numerics.verify != "rejection" or loaded.draft_module is None:
        return None
    from deepinfer.speculation.proposals import Proposals

    rows = (sequences.num_slots + 1) * plan.drafting.depth
    kept_MV = torch.zeros(rows, plan.model.config.vocab_size, device=sequences.device)
    return Proposals(kept_MV, lambda slots: (params.top_p_N[slots], params.min_p_N[slots], params.top_k_N[slots]))


def _drafter(loaded: Loaded, cache: ModelCache, proposals: Proposals | None) -> DeviceDSpark | None:
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
        proposals=proposals,
    )


def _sampling(
    loaded: Loaded,
    state: DecodeState,
    sequences: DeviceSequences,
    drafter: DeviceDSpark | None,
    proposals: Proposals | None,
) -> SamplingLane:
    """One lane for the whole plan: the device's, unless a drafter looks at tokens on the host."""
    plan, model, sampler = loaded.plan, loaded.model, loaded.sampler
    from deepinfer.engine.sampling_graphs import SamplingGraphs
    from deepinfer.sampling.device_rows import DeviceSampler

    tokens_only, logits, device = token_drafter(plan), model.logits, model.device
    kept_MV, rejection = None if proposals is None else proposals.kept_MV, plan.numerics.verify == "rejection"
    on_device = DeviceSampler(sampler, model.ops, device, rejection=rejection, proposed_MV=kept_MV)
    if tokens_only is not None:
        judge: Verifier = DeviceVerifier(on_device, CoupledVerifier(sampler), DeviceClock(device))
        if rejection and plan.drafting.kind != "ngram":  # somebody's own drafter may draw from logits of its own
            judge = verifier_of(plan, sampler)
        return HostLane(judge, logits, state, sequences, device, drafter=tokens_only, grammar=loaded.grammar)
    steps = None
    if loaded.graphs:
        steps = SamplingGraphs(on_device, logits, sequences, verify_length=plan.drafting.verify_length, graphs=True)
    return DeviceLane(on_device, logits, state, sequences, device, drafter=drafter, graphs=steps)
