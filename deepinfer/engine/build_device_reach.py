"""How a model of fused operations reaches what other ranks hold, experts apart, and where its n-gram tables lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.engine.build_spread import RankGroups, table_bounds

if TYPE_CHECKING:
    import torch

    from deepinfer.plan.types import Plan


def device_reach(plan: Plan, groups: RankGroups | None, device: torch.device) -> dict[str, Any]:
    """What `FusedModel` takes besides a dispatch. `groups` None: all of the model is here; theirs talk where it computes."""
    role = plan.layout.roles[0] if groups is None else plan.layout.role(groups.rank.role)
    found: dict[str, Any] = {"host_tables": role.engram == "host" and role.hardware.kind != "cpu"}
    if groups is None:
        return found
    if groups.tables is not None:
        from deepinfer.parallel.device_tables import DeviceTables, most_fixed_rows

        config, bounds = plan.model.config, table_bounds(plan, groups.rank)
        numbers = (config.engram_max_ngram_size - 1) * config.engram_n_heads * config.engram_head_dim
        most = most_fixed_rows(groups.tables.size, numbers)
        found["tables"] = DeviceTables(groups.tables, bounds, device=device, most_rows=most)
    if groups.context is not None:
        from deepinfer.parallel.context import DEVICE_LEAST_ROWS, LEAST_ROWS, ContextDivision

        found["division"] = ContextDivision(groups.context, DEVICE_LEAST_ROWS if device.type == "cuda" else LEAST_ROWS)
    return found
