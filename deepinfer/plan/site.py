"""A plan held against the site that it is made for."""

from collections.abc import Iterator

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Problem
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.roles import OPTIONS, choose, key_of
from deepinfer.plan.types import Layout, RolePlan


def check_site(cluster: Cluster, layout: Layout) -> Iterator[Problem]:
    """The layout must fit on the site's nodes, and every node must have a name where names are given."""
    if not isinstance(cluster, SiteCluster):
        return
    if layout.num_nodes > cluster.nodes:
        yield plan_problem(
            f"cluster.nodes={cluster.nodes}",
            f"the layout needs {_needed(layout)}",
            f"{_nodes(cluster.nodes)} is all that cluster.name={cluster.name} has",
            _fewer(cluster, layout),
        )
    if cluster.hosts and len(cluster.hosts) != cluster.nodes:
        yield plan_problem(
            f"cluster.hosts with {len(cluster.hosts)} names",
            f"cluster.nodes={cluster.nodes}",
            "hosts are named in the order of the nodes, all of them or none",
            f"cluster.nodes={len(cluster.hosts)}",
        )


def _needed(layout: Layout) -> str:
    """ "9 nodes: 1 with 4 × NVIDIA GB300 NVL72 for prefill, 8 with 8 × Huawei Ascend 950DT for decode"."""
    parts = [
        f"{_count(layout, role)} with {role.hardware.node_devices} × {role.hardware.name}"
        + (f" for {role.name}" if role.name != "all" else "")
        for role in layout.roles
    ]
    return f"{_nodes(layout.num_nodes)}: {', '.join(parts)}"


def _fewer(cluster: SiteCluster, layout: Layout) -> str:
    """Fewer ranks where one role is all there is; else the site that such a layout takes."""
    role, room = layout.roles[0], cluster.nodes * layout.roles[0].hardware.node_devices
    if len(layout.roles) == 1 and role.expert == role.attention_dp == role.num_ranks and role.expert % room == 0:
        by_degrees = f"{key_of(role.name)}.attention_dp={room} {key_of(role.name)}.expert={room}"
        return choose(role.name, OPTIONS[room]) if room in OPTIONS else by_degrees
    return f"cluster.nodes={layout.num_nodes}"


def _count(layout: Layout, role: RolePlan) -> int:
    return len({rank.node for rank in layout.ranks if rank.role == role.name})


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number > 1)}"
