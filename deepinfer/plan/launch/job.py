"""What a launcher is given, and what it gives back: plain text files, and what to type."""

from deepinfer.config.launchers import Launcher
from deepinfer.plan.frozen import Frozen
from deepinfer.plan.launch.worlds import World
from deepinfer.plan.render import json_text
from deepinfer.plan.types import HardwarePlan, Plan

PLAN_FILE = "plan.json"


class Job(Frozen, frozen=True, kw_only=True):
    """A plan that is to be started. `hosts` are the names of its nodes in order, empty where nobody gave them."""

    plan: Plan
    launcher: Launcher
    worlds: tuple[World, ...]
    hosts: tuple[str, ...] = ()
    env: dict[str, int | str] = {}  # variables of every rank

    @property
    def plan_text(self) -> str:
        """What plan.json holds."""
        return f"{json_text(self.plan)}\n"

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
