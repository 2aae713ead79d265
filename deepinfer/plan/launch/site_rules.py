"""What a launch may not take from a site: names of its machines that are none, and ports that there are not."""

import ipaddress
import re
from collections.abc import Iterator

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Problem
from deepinfer.config.launchers import Launcher
from deepinfer.plan.launch.texts import shown
from deepinfer.plan.launch.worlds import worlds_of
from deepinfer.plan.types import Plan

MAX_PORT = 65535
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_INTERFACE = re.compile(r"[\^=]?[A-Za-z0-9_.:,-]+")  # NCCL and Gloo take lists; NCCL's may begin with ^ or =


def site_problems(cluster: Cluster) -> Iterator[Problem]:
    """Hosts and interface go into scripts, variables and options as they stand."""
    if not isinstance(cluster, SiteCluster):
        return
    for index, host in enumerate(cluster.hosts):
        asked = f"cluster.hosts[{index}]={shown(host)}"
        first = cluster.hosts.index(host)
        if not _is_host(host):
            found = "neither a host name nor an address"
            yield Problem(asked=asked, found=found, why="scripts and torchrun are given it as it stands")
        elif first < index:
            found, why = f"cluster.hosts[{first}] is the same", "each node of the plan is a machine of its own"
            yield Problem(asked=asked, found=found, why=why)
    if cluster.interface is not None and not _INTERFACE.fullmatch(cluster.interface):
        asked = f"cluster.interface={shown(cluster.interface)}"
        yield Problem(asked=asked, found="no name of a network interface", why="as ip link shows them: eth0, bond0")


def _is_host(text: str) -> bool:
    if ":" not in text:
        return bool(_HOST.fullmatch(text))
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return bool(re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?", text))


def port_problems(plan: Plan, launcher: Launcher) -> Iterator[Problem]:
    """Each world meets on a port of its own; on Kubernetes pods have addresses of their own, and one port will do."""
    worlds = worlds_of(plan)
    last = launcher.master_port + len(worlds) - 1
    if launcher.kind != "kubernetes" and last > MAX_PORT:
        found = f"the last of {len(worlds)} replicas would meet on port {last}, and ports end at {MAX_PORT}"
        fix = f"launcher.master_port={MAX_PORT - len(worlds) + 1}" if len(worlds) < MAX_PORT else ""
        asked = f"launcher.master_port={launcher.master_port}"
        yield Problem(asked=asked, found=found, why="each replica takes the next port", fix=fix)
