"""The rank table: who stands where and holds what.

Up to ONE_BY_ONE ranks have a line each. Of more, a line stands for the ranks of a node, and each further replica is one line,
since it is as the first: any layout is a screen or two. `format=json` has every rank.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from deepinfer.plan.columns import aligned
from deepinfer.plan.types import Plan, RankPlan, RolePlan

ONE_BY_ONE = 16
HEADS = tuple("ranks role node device attention_dp context group index experts draft engram_rows".split())


def rank_lines(plan: Plan) -> list[str]:
    """The table with its head, columns aligned, and a legend; equal plans give equal lines."""
    layout = plan.layout
    short = layout.num_ranks > ONE_BY_ONE
    rows = [HEADS]
    for role in layout.roles:
        ranks = [rank for rank in layout.ranks if rank.role == role.name]
        for replica, members in groupby(ranks, key=lambda rank: rank.replica):
            if short and replica:
                rows.append(_as_the_first(role, list(members)))
                continue
            groups = groupby(members, key=lambda rank: rank.node if short else rank.rank)
            rows += [_row(plan, role, list(group)) for _, group in groups]
    return [*aligned(rows), "", *_legend(plan)]


def _as_the_first(role: RolePlan, ranks: Sequence[RankPlan]) -> tuple[str, ...]:
    """One line for a further replica."""
    places = [_runs(getattr(rank, key) for rank in ranks) for key in ("rank", "node", "device")]
    return (places[0], f"{role.name}-{ranks[0].replica}", *places[1:], f"as {role.name}-0", *[""] * (len(HEADS) - 5))


def _row(plan: Plan, role: RolePlan, ranks: Sequence[RankPlan]) -> tuple[str, ...]:
    config = plan.model.config
    return (
        _runs(rank.rank for rank in ranks),
        role.name if role.replicas == 1 else f"{role.name}-{ranks[0].replica}",
        _runs(rank.node for rank in ranks),
        _runs(rank.device for rank in ranks),
        _runs(rank.attention_dp for rank in ranks),
        _runs(rank.context for rank in ranks),
        _runs((rank.rank - role.first_rank) // role.expert for rank in ranks),
        _runs(rank.expert for rank in ranks),
        _slots((rank.experts for rank in ranks), config.n_routed_experts),
        _slots((rank.draft_experts for rank in ranks), config.dspark_n_routed_experts)
        if plan.drafting.num_draft_layers
        else "-",
        _rows(role, ranks),
    )


def _slots(ranges: Iterable[tuple[int, int]], experts: int) -> str:
    """Slots of a group's ranks as experts, and how many slots beyond them hold copies."""
    slots = sorted({slot for low, high in ranges for slot in range(low, high)})
    copies = sum(slot >= experts for slot in slots)
    routed = _runs(slot for slot in slots if slot < experts)
    return " + ".join([*([routed] if routed else []), *([f"{copies} copies"] if copies else [])]) or "-"


def _rows(role: RolePlan, ranks: Sequence[RankPlan]) -> str:
    """Rows of all n-gram tables together, in millions where there are many."""
    rows = sum(high - low for rank in ranks for low, high in rank.engram_rows)
    if not rows:
        return "-"
    if role.engram == "replicated" or (role.engram == "host" and role.hardware.kind == "cpu"):
        return f"all {_count(rows // len(ranks))}"
    return f"{_count(rows)}{' on the host' if role.engram == 'host' else ''}"


def _count(number: int) -> str:
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number:,}"


def _runs(numbers: Iterable[int]) -> str:
    """Numbers as runs: "0-3,8"; repeated ones once."""
    parts = []
    for _, run in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        parts.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0]))
    return ",".join(parts)


def _shared(context: int) -> str:
    return "one rank's" if context == 1 else f"shared by {context} ranks"


def _legend(plan: Plan) -> Iterator[str]:
    layout = plan.layout
    if layout.num_ranks > ONE_BY_ONE:
        yield f"a line is the ranks of one node, {layout.num_ranks} in all; plan format=json has each of them"
    for role in layout.roles:
        first = next(rank for rank in layout.ranks if rank.role == role.name)
        slots, drafts = (high - low for low, high in (first.experts, first.draft_experts))
        draft = f", {drafts} draft experts" if plan.drafting.num_draft_layers else ""
        yield (
            f"{role.name}: {slots} expert slots a rank{draft}; a group of {role.expert} holds all experts; "
            f"a prompt is {_shared(role.context)}; n-gram tables {role.engram}"
        )
    if any(role.redundant_experts for role in layout.roles):
        yield "copies: slots beyond the experts, for those that most tokens choose"
