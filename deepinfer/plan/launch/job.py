"""What a launcher is given, and what it gives back: plain text files, and what to type."""

import msgspec

from deepinfer.config.launchers import Launcher
from deepinfer.plan.digest import sealed
from deepinfer.plan.frozen import Frozen
from deepinfer.plan.launch.requests import BEFORE_S, grace_s
from deepinfer.plan.launch.worlds import World
from deepinfer.plan.types import HardwarePlan, Plan

PLAN_FILE = "plan.json"


# How the libraries that join ranks are told a network interface: Gloo is always there, a vendor's on its chips.
INTERFACE = {"cuda": "NCCL_SOCKET_IFNAME", "ascend": "HCCL_SOCKET_IFNAME"}

# torchrun kills its ranks 30 s after SIGTERM, or as many as this variable says (its --shutdown-timeout)
UNDER_TORCHRUN, SHUTDOWN = ("torchrun", "ray", "kubernetes"), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


class Job(Frozen, frozen=True, kw_only=True):
    """A plan that is to be started. `hosts` are the names of its nodes in order, empty where nobody gave them."""

    plan: Plan
    launcher: Launcher
    worlds: tuple[World, ...]
    hosts: tuple[str, ...] = ()
    interface: str | None = None  # network interface of the site
    lacks: tuple[str, ...] = ()  # what the plan asks for and this version of deepinfer has no code for

    @property
    def plan_text(self) -> str:
        """What plan.json holds."""
        return msgspec.json.format(sealed(self.plan), indent=2).decode() + "\n"

    @property
    def not_runnable(self) -> str:
        """The sentence that marks every file of a plan whose ranks would refuse to start; empty for any other."""
        if not self.lacks:
            return ""
        return f"NOT RUNNABLE with deepinfer {self.plan.deepinfer}: it has no code for {', '.join(self.lacks)}"

    def env(self, *worlds: World) -> dict[str, int | str]:
        """Variables of the ranks of some worlds; the launcher's own win over the site's."""
        names = ["GLOO_SOCKET_IFNAME", *(INTERFACE.get(self.chip(world).kind, "") for world in worlds)]
        env: dict[str, int | str] = {name: self.interface for name in names if name and self.interface}
        if self.launcher.kind in UNDER_TORCHRUN and self.plan.serving:
            env[SHUTDOWN] = grace_s(self.plan) - BEFORE_S
        return env | self.launcher.env

    def port(self, world: World) -> int:
        """Where the ranks of a world meet; worlds differ, so that two on one machine do not."""
        return self.launcher.master_port + world.index

    def chip(self, world: World) -> HardwarePlan:
        """What the ranks of a world compute on."""
        return self.plan.layout.role(world.role).hardware

    def spans_domain(self, world: World) -> bool:
        """Whether a world spans nodes, and a link that is faster than the network spans them, too."""
        chip = self.chip(world)
        return world.num_nodes > 1 and chip.node_devices < chip.domain_devices >= world.size


class Rendered(Frozen, frozen=True, kw_only=True):
    """Files by their names inside the folder, and what to type there, in this order."""

    files: dict[str, str]
    steps: tuple[str, ...]
    notes: tuple[str, ...] = ()  # of this launcher, for the operator
    warnings: tuple[str, ...] = ()  # what works and is hardly meant
