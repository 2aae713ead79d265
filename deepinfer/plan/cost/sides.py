"""A role of the plan as the cost model sees it: the model as its ops run it, its ranks, and how its times are reckoned."""

from collections.abc import Mapping

from deepinfer.plan.cost.dtypes import computed_in_dtype
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.phases import Side
from deepinfer.plan.cost.shape import Shape
from deepinfer.plan.cost.types import Calibration
from deepinfer.plan.cost.v41 import shape_of, widened
from deepinfer.plan.memory import Scene
from deepinfer.plan.types import RolePlan

ITEM = {"float32": ("f32", 4), "float64": ("f64", 8), "bfloat16": ("bf16", 2)}


def side_of(scene: Scene, role: RolePlan, scenes: Mapping[str, Scene], calibrations: tuple[Calibration, ...]) -> Side:
    """The side of `role`, whose scene is among `scenes`; `calibrations` begin with the roofline."""
    chip = scene.role.chip
    on_cpu = sum(other.role.num_ranks for other in scenes.values() if other.role.is_cpu)
    group = Group(
        chip=chip,
        num_ranks=role.num_ranks // role.replicas,
        context=role.context,
        expert=role.expert,
        redundant_experts=role.redundant_experts,
        engram=role.engram,
        sharers=max(1, on_cpu) if chip.kind == "cpu" else 1,
    )
    shape = model_of(scene, scene.case.drafting.num_draft_layers)
    return Side(role=role.name, shape=shape, group=group, calibrations=calibrations)


def model_of(scene: Scene, num_draft_layers: int) -> Shape:
    """The model in the formats that the ops of a role hold and compute in."""
    case, resident = scene.case, scene.resident
    dtype, item_bytes = ITEM[case.numerics.dtype]
    shape = shape_of(case.config, scene.cache, num_draft_layers=num_draft_layers)
    return widened(
        computed_in_dtype(shape, dtype, item_bytes),
        dtype,
        item_bytes,
        dense=resident["dense"] == "expanded",
        experts=resident["experts"] == "expanded",
        engram=resident["engram"] == "expanded",
    )
