"""The fleet section of a plan as text."""

from collections.abc import Iterator

from deepinfer.plan.cost.fleet_types import FleetPlan, Need
from deepinfer.plan.cost.labels import labelled
from deepinfer.plan.quantities import amount, counted
from deepinfer.plan.render_cost import Row
from deepinfer.plan.types import Plan


def fleet_lines(plan: Plan) -> Iterator[Row]:
    """How many ranks the workload's traffic needs; nothing where it names none, or where none would do."""
    if plan.cost.fleet is not None:
        yield from _fleet(plan.cost.fleet, plan.cost.stand_ins)


def _fleet(fleet: FleetPlan, stand_ins: dict[str, str]) -> Iterator[Row]:
    total = fleet.prompt_tokens_per_s + fleet.answer_tokens_per_s
    peak = f" at the peak, {fleet.peak_to_mean:g} × the mean" if fleet.peak_to_mean != 1 else ""
    label = labelled(fleet.label, next(iter(stand_ins.values()), ""))
    yield "traffic", f"{amount(fleet.requests_per_s)} requests/s, {amount(total)} tokens/s{peak}"
    computed = f"{amount(fleet.computed_tokens_per_s)} of them not in the cache"
    yield "traffic", f"{amount(fleet.prompt_tokens_per_s)} prompt tokens/s, {computed}"
    yield "traffic", f"{amount(fleet.answer_tokens_per_s)} answer tokens/s, {fleet.output_share:.2%} of all"
    for need in fleet.needs:
        yield need.role, _need(need, labelled(fleet.label, stand_ins.get(need.role, "")))
    busy = f", none more than {fleet.utilisation:.0%} busy" if fleet.utilisation < 1 else ""
    each = f"{amount(fleet.tokens_per_s_per_gpu)} tokens/s each ({label})"
    yield "ranks", f"{fleet.ranks:,} on {counted(fleet.nodes, 'node')}{busy}, {each}"
    for line in fleet.sensitivity:
        work = ", ".join(f"{role} {ranks:,.1f}" for role, ranks in line.ranks_exact.items())
        found = f"{work} ranks' work; {counted(line.ranks, 'rank')} ({label})"
        yield "if", f"workload.{line.key}={line.value:g}: {found}"
    yield from (("free", name) for name in fleet.free)


def _need(need: Need, label: str) -> str:
    rate = f"{amount(need.tokens_per_s)} tokens/s at {amount(need.tokens_per_s_per_gpu)} a rank"
    counts = ((need.replicas, "replica"), (need.ranks, "rank"), (need.nodes, "node"))
    found = ", ".join(counted(count, noun) for count, noun in counts)
    return f"{rate}: {need.ranks_exact:,.1f} ranks' work; {found}, {need.utilisation:.0%} busy ({label})"
