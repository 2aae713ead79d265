"""Lines of a plan about its roles: ranks, chips, ops and what those need. Roles that are alike are told of once."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

from deepinfer.plan.quantities import counted
from deepinfer.plan.types import OpChoice, Plan, RolePlan

Line = tuple[str, str]
T = TypeVar("T")


def ranks_on_chips(plan: Plan) -> str:
    """ "NVIDIA H200 SXM", or "4 × NVIDIA GB300 NVL72 + 64 × Huawei Ascend 950DT"."""
    counts: dict[str, int] = {}
    for role in plan.layout.roles:
        counts[role.hardware.name] = counts.get(role.hardware.name, 0) + role.num_ranks
    if plan.layout.num_ranks == 1:
        return plan.hardware.name
    return " + ".join(f"{count:,} × {name}" for name, count in counts.items())


def layout_lines(plan: Plan) -> Iterator[Line]:
    """Ranks, nodes and domains of the whole plan, then a line for each role."""
    layout = plan.layout
    links = dict.fromkeys(role.hardware.domain for role in layout.roles if role.hardware.domain)
    nodes = f" on {counted(layout.num_nodes, 'node')}" if layout.num_nodes > 1 else ""
    domain = f"{' or '.join(links)} domain"
    domains = f", {counted(layout.num_domains, domain)}" if links else ""
    yield "ranks", f"{layout.num_ranks:,}{nodes}{domains}"
    several = len({role.hardware.name for role in layout.roles}) > 1
    for role in layout.roles:
        first = next(rank for rank in layout.ranks if rank.rank == role.first_rank)
        slots = first.experts[1] - first.experts[0]
        copies = f" + {role.redundant_experts} copies" if role.redundant_experts else ""
        chip = f", on {role.hardware.name}" if several else ""
        yield (
            role.name,
            (
                f"{role.replicas} × (attention_dp {role.attention_dp} × context {role.context}), "
                f"experts over {role.expert}: {slots} of {plan.model.config.n_routed_experts}{copies} a rank, "
                f"engram {role.engram}{chip}"
            ),
        )


def op_lines(plan: Plan) -> Iterator[Line]:
    """Which backend takes which ops, and why."""
    for ops, role in _distinct(plan, [role.ops for role in plan.layout.roles]):
        ordered = sorted(ops, key=lambda choice: (choice.backend, choice.reason, choice.runner_up))
        for (backend, reason, runner_up), group in groupby(ordered, key=lambda c: (c.backend, c.reason, c.runner_up)):
            second = f"; second: {runner_up}" if runner_up else ""
            yield backend, f"{role}{_which([choice.op for choice in group], ops)} ({reason}{second})"


def _which(names: list[str], ops: Sequence[OpChoice]) -> str:
    """Ops by name, or all of them but a few."""
    others = [choice.op for choice in ops if choice.op not in names]
    if not others:
        return f"all {len(ops)}"
    if len(others) < len(names):
        return f"all {len(ops)} but {' '.join(others)}"
    return " ".join(names)


def need_lines(plan: Plan) -> Iterator[Line]:
    """The lowest versions that will do."""
    for floors, role in _distinct(plan, [role.floors for role in plan.layout.roles]):
        for why, group in groupby(floors, key=lambda floor: floor.why):
            versions = ", ".join(f"{floor.what} {_version(floor.at_least)}".rstrip() for floor in group)
            yield "", f"{role}{versions} ({why})"


def _version(at_least: str) -> str:
    return f"≥ {at_least}" if at_least[:1].isdigit() else at_least


def _distinct(plan: Plan, of_roles: Sequence[T]) -> Iterator[tuple[T, str]]:
    """What differs between roles, each with "prefill: "; once and without a name where all roles are alike."""
    if all(item == of_roles[0] for item in of_roles):
        yield of_roles[0], ""
    else:
        yield from ((item, f"{role.name}: ") for item, role in zip(of_roles, plan.layout.roles, strict=True))


def backends(roles: Sequence[RolePlan]) -> str:
    """The backends of all roles, each once."""
    return ", ".join(dict.fromkeys(choice.backend for role in roles for choice in role.ops))
