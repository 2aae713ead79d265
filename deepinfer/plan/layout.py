"""Who holds what: ranks of every role, their experts and their rows of the engram tables.

Ranks of a role lie replica by replica; inside a replica attention-parallel index major, context index minor, so that
the ranks that share a prompt are neighbours. Expert groups are runs of `expert` consecutive ranks.
"""

from msgspec import structs

from deepinfer.arch.config import V41Config
from deepinfer.config.chips import Chip
from deepinfer.config.specs import Parallel
from deepinfer.plan.types import Layout, RankPlan, RolePlan

Roles = tuple[tuple[str, int, Parallel], ...]


def lay_out(roles: Roles, config: V41Config, chip: Chip, engram: dict[str, str]) -> Layout:
    """Every rank of every role; `engram` says for each role where the n-gram tables live."""
    role_plans: list[RolePlan] = []
    ranks: list[RankPlan] = []
    per_node, num_nodes = chip.node_devices.value, 0
    for name, replicas, parallel in roles:
        role_plans.append(
            RolePlan(
                name=name,  # type: ignore[arg-type]
                replicas=replicas,
                attention_dp=parallel.attention_dp,
                context=parallel.context,
                expert=parallel.expert,
                redundant_experts=parallel.redundant_experts,
                engram=engram[name],  # type: ignore[arg-type]
                first_rank=len(ranks),
                num_ranks=replicas * parallel.num_ranks,
            )
        )
        for replica in range(replicas):
            replica_ranks = _replica(name, replica, len(ranks), parallel, config, sharded=engram[name] != "replicated")
            ranks += [_placed(rank, index, num_nodes, per_node) for index, rank in enumerate(replica_ranks)]
            num_nodes += -(-parallel.num_ranks // per_node)
    domain, devices = widest_link(chip)
    num_domains = -(-len(ranks) // devices) if domain else len(ranks)
    return Layout(
        num_ranks=len(ranks),
        num_nodes=num_nodes,
        num_domains=num_domains,
        roles=tuple(role_plans),
        ranks=tuple(ranks),
    )


def _placed(rank: RankPlan, index: int, first_node: int, per_node: int) -> RankPlan:
    """The rank on its node: a replica fills its nodes one after the other."""
    return structs.replace(rank, node=first_node + index // per_node, device=index % per_node)


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


def widest_link(chip: Chip) -> tuple[str, int]:
    """The fastest link between devices and how many it joins; "" and 1 for a chip without one."""
    links = [(link.value, name, link.devices) for name, link in chip.links.items() if link.devices > 1]
    if not links:
        return "", 1
    _, name, devices = max(links)
    return name, devices


def valid_expert_degrees(config: V41Config, num_ranks: int, redundant: int, *, drafting: bool) -> list[int]:
    """Degrees that split the ranks, the expert slots and (when drafting) the draft experts evenly."""
    slots = config.n_routed_experts + redundant
    draft = config.dspark_n_routed_experts if drafting else 0
    return [n for n in range(1, num_ranks + 1) if num_ranks % n == slots % n == draft % n == 0]
