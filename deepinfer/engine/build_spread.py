"""What one rank of several holds of a model, and how it reaches what others hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from deepinfer.parallel.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from deepinfer.ops import Ops
    from deepinfer.ops.device import DeviceOps
    from deepinfer.parallel.all_to_all import AllToAllDispatch
    from deepinfer.parallel.device_dispatch import DeviceDispatch
    from deepinfer.parallel.peers import Peers
    from deepinfer.plan.types import Plan, RankPlan, RolePlan

_EXPERT = re.compile(r"(layers|mtp)\.(\d+)\.ffn\.experts\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """The weights of one rank. `placed`: where the trunk's experts lie; None: in order, then copies from the first on."""

    plan: Plan
    rank: RankPlan
    placed: Placement | None = None

    @property
    def role(self) -> RolePlan:
        return self.plan.layout.role(self.rank.role)

    @cached_property
    def trunk(self) -> Placement:
        """The slots of the trunk's layers over all ranks of an expert group."""
        config, role = self.plan.model.config, self.role
        sizes = config.num_hidden_layers, config.n_routed_experts, role.expert, role.redundant_experts
        return self.placed or Placement.initial(*sizes)

    @cached_property
    def draft(self) -> Placement | None:
        """The slots of the draft module's layers, without copies; None where nothing is drafted with it."""
        config, layers = self.plan.model.config, self.plan.drafting.num_draft_layers
        return Placement.initial(layers, config.dspark_n_routed_experts, self.role.expert) if layers else None

    def names(self, names: Iterable[str]) -> list[str]:
        """Those of a model's tensors that this rank holds: no experts but those of its slots."""
        return [name for name in names if self._holds(name)]

    @property
    def rows(self) -> dict[str, tuple[int, int]]:
        """The rows of n-gram tables that it holds, where it holds not all of them."""
        config = self.plan.model.config
        spans = zip(config.engram_layer_ids, self.rank.engram_rows) if spreads_tables(self.role) else ()
        return {f"layers.{layer}.engram.embed.weight": span for layer, span in spans}

    def _holds(self, name: str) -> bool:
        found = _EXPERT.match(name)
        placement = self.trunk if found is None or found[1] == "layers" else self.draft
        if found is None or placement is None:
            return True
        return int(found[3]) in placement.experts_of(int(found[2]), self.rank.expert)


@dataclass(frozen=True, kw_only=True)
class RankGroups:
    """Who has the rest: groups of ranks, each None where there is nobody or nothing to share. `placed` as in RankPart."""

    rank: RankPlan
    experts: Peers | None = None  # ranks that hold the experts together
    tables: Peers | None = None  # ranks that hold the n-gram tables together: all of a replica
    context: Peers | None = None  # ranks that share prompts
    placed: Placement | None = None

    def part(self, plan: Plan) -> RankPart:
        """What this rank holds."""
        return RankPart(plan=plan, rank=self.rank, placed=self.placed)


def spreads_tables(role: RolePlan) -> bool:
    """Whether each rank has some rows of the n-gram tables: on the device, or in its host's memory, which a CPU's own is."""
    spread = role.engram == "sharded" or (role.engram == "host" and role.hardware.kind != "cpu")
    return spread and role.attention_dp * role.context > 1


def table_bounds(plan: Plan, rank: RankPlan) -> list[list[int]]:
    """Where the rows of each rank of a replica begin and end in every n-gram table."""
    replica = [r for r in plan.layout.ranks if (r.role, r.replica) == (rank.role, rank.replica)]
    return [[0, *(r.engram_rows[table][1] for r in replica)] for table in range(len(rank.engram_rows))]


def dispatch_of(plan: Plan, groups: RankGroups, ops: Ops) -> AllToAllDispatch | None:
    """How rows get to experts of other ranks; None where all experts are here."""
    if groups.experts is None:
        return None
    from deepinfer.parallel.all_to_all import AllToAllDispatch

    part, numerics = groups.part(plan), plan.numerics
    return AllToAllDispatch(
        groups.experts,
        ops,
        trunk=part.trunk,
        draft=part.draft,
        numerics=numerics.numerics,
        reproducible=numerics.reproducible,
    )


def device_dispatch_of(
    plan: Plan, groups: RankGroups | None, ops: DeviceOps, device: torch.device
) -> DeviceDispatch | None:
    """The same for a model of fused operations on `device`."""
    if groups is None or groups.experts is None:
        return None
    import torch

    from deepinfer.parallel.device_dispatch import DeviceDispatch

    part = groups.part(plan)
    return DeviceDispatch(
        groups.experts,
        ops,
        trunk=part.trunk,
        draft=part.draft,
        reproducible=plan.numerics.reproducible,
        dtype=getattr(torch, plan.numerics.dtype),
        device=device,
    )


def reach(plan: Plan, groups: RankGroups, ops: Ops) -> dict[str, Any]:
    """What V41Model takes besides, to compute as one of several ranks."""
    found: dict[str, Any] = {"dispatch": dispatch_of(plan, groups, ops)}
    if groups.tables is not None:
        from deepinfer.parallel.engram_rows import SpreadTables

        bounds = table_bounds(plan, groups.rank)
        found["tables"] = SpreadTables(groups.tables, ops, bounds, numerics=plan.numerics.numerics)
    if groups.context is not None:
        from deepinfer.parallel.context import ContextDivision

        found["division"] = ContextDivision(groups.context)
    return found
