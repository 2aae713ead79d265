"""What a plan has that no key of the configuration sets by itself: ops, memory, graph, capacity, cost, decisions."""

import msgspec

from deepinfer.config.misnamed import options_of
from deepinfer.config.neighbours import other_options
from deepinfer.plan.changes import shown
from deepinfer.plan.compare import bound_of
from deepinfer.plan.types import Node, Plan


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `lever` is the key or group behind it, `others` what that could be instead."""

    key: str
    value: str
    because: str = ""
    second: str = ""
    needs: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    lever: str = ""
    others: tuple[object, ...] = ()


def parts_of(plan: Plan) -> dict[str, Part]:
    """Dotted name, section first → part."""
    parts = [*_ops(plan), *_memory(plan), *_graph(plan), *_capacity(plan), *_cost(plan), *_decisions(plan)]
    found: dict[str, Part] = {}
    for part in parts:
        found.setdefault(part.key, part)
    return found


def _ops(plan: Plan) -> list[Part]:
    apart = len({role.ops for role in plan.layout.roles}) > 1
    sides = {f"{role.name}.": role.ops for role in plan.layout.roles} if apart else {"": plan.ops}
    return [
        Part(
            key=f"ops.{side}{choice.op}",
            value=choice.backend,
            because=choice.reason,
            second=choice.runner_up,
            lever="kernels.ops",
            others=tuple({choice.op: name} for name in ("reference",) if name != choice.backend),
        )
        for side, ops in sides.items()
        for choice in ops
    ]


def _memory(plan: Plan) -> list[Part]:
    return [
        Part(
            key=f"memory.{'' if memory.role == 'all' else f'{memory.role}.'}{item.name}",
            value=f"{item.num_bytes:,} B a rank",
            because=item.note or ("as the ops hold it" if item.num_bytes else ""),
        )
        for memory in plan.memory
        for item in memory.items
    ]


def _graph(plan: Plan) -> list[Part]:
    return [
        Part(
            key=f"graph.{node.name}",
            value=node.implementation or "nothing to build",
            because=node.reason + (" (planned, no code in this version)" if node.planned else ""),
            second=node.runner_up,
            needs=node.needs,
            needed_by=tuple(other.name for other in plan.graph if node.name in other.needs),
            lever=node.option.partition("=")[0],
            others=_other_options(node, plan),
        )
        for node in plan.graph
    ]


def _other_options(node: Node, plan: Plan) -> tuple[str, ...]:
    group = node.option.partition("=")[0]
    return tuple(other_options(plan.choices[group], options_of(group))) if group in plan.choices else ()


def _capacity(plan: Plan) -> list[Part]:
    rank = "what fits into the caches of one attention rank"
    return [
        Part(
            key=f"capacity.{name}",
            value=f"{getattr(plan.capacity, name):,}",
            because="all attention ranks together" if name.startswith("all_") else rank,
        )
        for name in plan.capacity.__struct_fields__
    ]


def _cost(plan: Plan) -> list[Part]:
    figures = [
        Part(key=f"cost.{figure.name}", value=shown(figure.value, figure.unit), because=f"by the {figure.label} model")
        for figure in plan.cost.headline
    ]
    bounds = [
        Part(key=f"cost.{step}", value=f"bound by {bound_of(cost)}", because=f"faster with {cost.moves}")
        for step, cost in (("prefill", plan.cost.prefill), ("decode", plan.cost.decode))
        if cost is not None
    ]
    return [*figures, *bounds]


def _decisions(plan: Plan) -> list[Part]:
    return [
        Part(key=decision.key, value=decision.value, because=decision.rule, second=decision.runner_up)
        for decision in plan.decisions
    ]
