"""Who holds what: ranks of every role, their experts and their rows of the engram tables.

Ranks of a role lie replica by replica; inside a replica attention-parallel index major, context index minor, so that
the ranks that share a prompt are neighbours. Expert groups are runs of `expert` consecutive ranks. A replica fills nodes
of its own, one after the other. Ranks on CPUs are processes of one machine, unless `hardware.node_devices` says how many of
them a node runs.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from msgspec import structs

from deepinfer.arch.config import V41Config
from deepinfer.config.specs import Parallel
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.types import HardwarePlan, Layout, RankPlan, RolePlan


def lay_out(
    roles: Sequence[RoleCase], config: V41Config, hardware: Mapping[str, HardwarePlan], engram: Mapping[str, str]
) -> Layout:
    """Every rank of every role; `hardware` and `engram` say for each role its chip and where the n-gram tables live."""
    role_plans: list[RolePlan] = []
    ranks: list[RankPlan] = []
    for role in roles:
        parallel = role.parallel
        role_plans.append(
            RolePlan(
                name=role.name,  # type: ignore[arg-type]
                replicas=role.replicas,
                attention_dp=parallel.attention_dp,
                context=parallel.context,
                expert=parallel.expert,
                redundant_experts=parallel.redundant_experts,
                engram=engram[role.name],  # type: ignore[arg-type]
                first_rank=len(ranks),
                num_ranks=role.num_ranks,
                hardware=hardware[role.name],
            )
        )
        for replica in range(role.replicas):
            on_cpu = hardware[role.name].kind == "cpu"  # its memory is the host's: every rank has whole tables there
            sharded = engram[role.name] == "sharded" or (engram[role.name] == "host" and not on_cpu)
            ranks += _replica(role.name, replica, len(ranks), parallel, config, sharded=sharded)
    placed = _placed(ranks, role_plans)
    return Layout(
        num_ranks=len(placed),
        num_nodes=1 + max(rank.node for rank in placed),
        num_domains=_num_domains(placed, role_plans),
        roles=tuple(role_plans),
        ranks=placed,
    )


def _placed(ranks: Sequence[RankPlan], roles: Sequence[RolePlan]) -> tuple[RankPlan, ...]:
    """The ranks on their nodes."""
    chips: dict[str, HardwarePlan] = {role.name: role.hardware for role in roles}
    on_cpu = [rank.rank for rank in ranks if chips[rank.role].kind == "cpu"]
    here = {name for name, chip in chips.items() if chip.kind == "cpu" and chip.node_devices >= len(on_cpu)}
    together = [rank.rank for rank in ranks if rank.role in here]
    num_nodes = int(bool(together))  # the machine that they share is the first
    placed: dict[int, tuple[int, int]] = {number: (0, index) for index, number in enumerate(together)}
    for (role, _), replica in groupby(ranks, key=lambda rank: (rank.role, rank.replica)):
        numbers, per_node = [rank.rank for rank in replica], chips[role].node_devices
        if role not in here:
            placed |= {n: (num_nodes + index // per_node, index % per_node) for index, n in enumerate(numbers)}
            num_nodes += -(-len(numbers) // per_node)
    return tuple(structs.replace(rank, node=placed[rank.rank][0], device=placed[rank.rank][1]) for rank in ranks)


def _num_domains(ranks: Sequence[RankPlan], roles: Sequence[RolePlan]) -> int:
    """Groups of devices that the fastest link joins, each as full as it can be; devices without one stand alone."""
    count = 0
    for fabric in {_fabric(role): None for role in roles}:
        mine = [role for role in roles if _fabric(role) == fabric]
        chip, names = mine[0].hardware, {role.name for role in mine}
        nodes = len({rank.node for rank in ranks if rank.role in names})
        num_ranks = sum(role.num_ranks for role in mine)
        whole_nodes = chip.domain_devices // chip.node_devices
        count += -(-nodes // whole_nodes) if chip.domain and whole_nodes else -(-num_ranks // chip.domain_devices)
    return count


def _fabric(role: RolePlan) -> tuple[str, str, int, int]:
    chip = role.hardware
    return chip.name, chip.domain, chip.domain_devices, chip.node_devices


def _replica(
    role: str, replica: int, first_rank: int, parallel: Parallel, config: V41Config, *, sharded: bool
) -> list[RankPlan]:
    num_ranks, groups = parallel.num_ranks, parallel.expert
    slots = (config.n_routed_experts + parallel.redundant_experts) // groups
    draft_slots = config.dspark_n_routed_experts // groups
    shares = num_ranks if sharded else 1
    found = []
    for index in range(num_ranks):
        expert, share = index % groups, index if sharded else 0
        found.append(
            RankPlan(
                rank=first_rank + index,
                node=0,
                device=0,
                role=role,
                replica=replica,
                attention_dp=index // parallel.context,
                context=index % parallel.context,
                expert=expert,
                experts=(expert * slots, (expert + 1) * slots),
                draft_experts=(expert * draft_slots, (expert + 1) * draft_slots),
                engram_rows=tuple(_share(rows, share, shares) for rows in config.engram_num_embeddings),
            )
        )
    return found


def _share(rows: int, index: int, shares: int) -> tuple[int, int]:
    """Rows that `index` of `shares` holds: consecutive runs whose lengths differ by one row at most."""
    return rows * index // shares, rows * (index + 1) // shares


def valid_expert_degrees(config: V41Config, num_ranks: int, redundant: int, *, drafting: bool) -> list[int]:
    """Degrees that split the ranks, the expert slots and (when drafting) the draft experts evenly."""
    slots = config.n_routed_experts + redundant
    draft = config.dspark_n_routed_experts if drafting else 0
    return [n for n in range(1, num_ranks + 1) if num_ranks % n == slots % n == draft % n == 0]
