"""Room for experts that change ranks while an engine runs: what has arrived waits until its layer has all it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from deepinfer.config.balancers import Eplb
from deepinfer.plan.types import MemoryItem, RankPlan, RolePlan

if TYPE_CHECKING:
    from deepinfer.plan.memory import Scene


def moving_items(scene: Scene, rank: RankPlan, role: RolePlan) -> Iterator[MemoryItem]:
    """A rank's slots of one layer, and what it sends off in a step; nothing where experts stay."""
    case, balancer = scene.case, scene.case.spec.balancer
    if not isinstance(balancer, Eplb) or role.expert == 1:
        return
    slots = rank.experts[1] - rank.experts[0]
    layers = case.config.num_hidden_layers
    layer_bytes = scene.weights.experts("experts", scene.held["experts"], case.numerics.dtype, slots) // layers
    sent_bytes = min(layer_bytes, max(balancer.budget_bytes, layer_bytes // slots))
    note = f"experts on their way: {slots} slots of a layer, and what is sent in a step"
    yield MemoryItem(name="moving", num_bytes=layer_bytes + sent_bytes, place="device", exact=False, note=note)
