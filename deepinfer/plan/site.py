"""A plan held against the site that it is made for."""

from collections.abc import Iterator

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Problem
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.roles import OPTIONS, choose
from deepinfer.plan.types import Layout, RolePlan


def check_site(cluster: Cluster, layout: Layout) -> Iterator[Problem]:
    """The layout must fit on the site's nodes, and every node must have a name where names are given."""
    if not isinstance(cluster, SiteCluster):
        return
    nodes, hosts = cluster.nodes, cluster.hosts
    if nodes != "auto" and hosts and len(hosts) != nodes:
        names = [*hosts, *(f"HOST{index + 1}" for index in range(len(hosts), nodes))]
        yield plan_problem(
            f"cluster.hosts with {len(hosts)} name{'s' * (len(hosts) > 1)}",
            f"cluster.nodes={nodes}",
            "hosts are named in the order of the nodes, all of them or none",
            f"cluster.hosts=[{','.join(names)}]" if len(hosts) < nodes else "cluster.nodes=auto",
        )
    has = cluster.num_nodes
    if has is not None and layout.num_nodes > has:
        yield plan_problem(
            f"cluster.nodes={nodes}",
            f"the layout needs {_needed(layout)}",
            f"{_nodes(has)} is all that {cluster.name or 'the site'} has",
            _fewer(has, layout),
        )


def _needed(layout: Layout) -> str:
    """ "9 nodes: 1 with 4 × NVIDIA GB300 NVL72 for prefill, 8 with 8 × Huawei Ascend 950DT for decode"."""
    parts = [
        f"{_count(layout, role)} with {role.hardware.node_devices} × {role.hardware.name}"
        + (f" for {role.name}" if role.name != "all" else "")
        for role in layout.roles
    ]
    return f"{_nodes(layout.num_nodes)}: {', '.join(parts)}"


def _fewer(has: int, layout: Layout) -> str:
    """What makes the layout small enough for `has` nodes: fewer replicas of one role, else fewer ranks in one."""
    over = layout.num_nodes - has
    for role in sorted(layout.roles, key=lambda role: -role.replicas):
        spare = -(-over * role.replicas // _count(layout, role))
        if spare < role.replicas:
            return f"deploy.{role.name}.replicas={role.replicas - spare}"
    for role in sorted(layout.roles, key=lambda role: -_count(layout, role)):
        room = (_count(layout, role) - over) * role.hardware.node_devices
        ranks = role.num_ranks // role.replicas
        fitting = [degree for degree in OPTIONS if degree <= room and ranks % degree == 0]
        if fitting and role.replicas == 1 and role.expert == role.attention_dp == ranks:
            return choose(role.name, OPTIONS[fitting[-1]])
    return ""


def _count(layout: Layout, role: RolePlan) -> int:
    return len({rank.node for rank in layout.ranks if rank.role == role.name})


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"
