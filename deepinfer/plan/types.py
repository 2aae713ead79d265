"""The plan: everything that was decided, checked and counted, as frozen data that travels as JSON.

Bytes are bytes, tokens are tokens; a field that holds neither says what it counts.
"""

from typing import Any, Literal

import msgspec

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.config.errors import Refused
from deepinfer.config.serving import Serving
from deepinfer.config.specs import Sampling, Scheduler
from deepinfer.plan.cost.types import CostPlan
from deepinfer.plan.frozen import Frozen

SEAL = "seal"  # key that `launch` adds to a plan: the digest of all others (deepinfer.plan.digest.seal)
Place = Literal["device", "host", "nowhere"]
Resident = Literal["packed", "expanded"]  # as the checkpoint stores it, or every element in `dtype`


class PlanErrors(Refused):
    """Everything that stands against a configuration, each with its class of exit code."""


class Decision(Frozen, frozen=True, kw_only=True):
    """One "auto", or one choice among several: what was taken, by which rule, and what came second."""

    key: str
    value: str
    rule: str
    runner_up: str = ""
    estimate: str = ""  # what the runner-up would cost, where that can be said


class WeightClass(Frozen, frozen=True, kw_only=True):
    """One class of tensors of the whole checkpoint. `elements` counts FP4 codes singly and no scales."""

    name: str
    num_tensors: int
    num_bytes: int
    elements: int


class ModelPlan(Frozen, frozen=True, kw_only=True):
    """Which model, from where, and the facts that its config.json fixes."""

    name: str
    source: Literal["package", "folder", "hub", "dummy"]
    location: str  # folder, or repo@revision
    weights: Literal["checkpoint", "dummy"]
    config: V41Config
    config_digest: str
    weights_digest: str
    num_tensors: int
    checkpoint_bytes: int
    classes: tuple[WeightClass, ...]
    growing_bytes_per_token: int
    block_bytes: int
    padded_block_bytes: int
    fixed_bytes_per_sequence: int  # as this plan runs it
    drafting_fixed_bytes_per_sequence: int  # with the checkpoint's drafter at its full depth
    drafting_depth: int
    max_model_len: int
    differences: tuple[str, ...]  # where the checkpoint's config.json and the named model disagree


class HardwarePlan(Frozen, frozen=True, kw_only=True):
    """The chip of every rank of a role. `measured` says that memory was read from the machine, not from a data sheet."""

    kind: Literal["cpu", "cuda", "ascend", "virtual"]
    option: str  # of conf/hardware, or the chip's name where no option was named
    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    usable_bytes: int
    measured: bool
    domain: str  # the link that joins most devices at full speed; empty where there is none
    domain_devices: int
    node_devices: int  # that share a host


class OpChoice(Frozen, frozen=True, kw_only=True):
    """Which backend carries out an op, and why not the next one."""

    op: str
    backend: str
    implementation: str
    resident: Resident
    reason: str
    runner_up: str = ""


class Floor(Frozen, frozen=True, kw_only=True):
    """A version that must be there at least, or a thing that must be there at all (`at_least` empty)."""

    what: str
    at_least: str
    why: str


class RankPlan(Frozen, frozen=True, kw_only=True, array_like=True):
    """One rank. Ranges are half-open; experts are slots of the expert-parallel group, engram rows one range a table."""

    rank: int
    node: int  # of all nodes of the plan; a replica begins on a node of its own, but ranks on CPUs share one
    device: int  # within its node
    role: str
    replica: int
    attention_dp: int
    context: int
    expert: int
    experts: tuple[int, int]
    draft_experts: tuple[int, int]
    engram_rows: tuple[tuple[int, int], ...]


class RolePlan(Frozen, frozen=True, kw_only=True):
    """A group of ranks that does one thing, all on one kind of chip."""

    name: Literal["all", "prefill", "decode"]
    replicas: int
    attention_dp: int
    context: int
    expert: int
    redundant_experts: int
    engram: Literal["replicated", "sharded", "host"]
    first_rank: int
    num_ranks: int  # of all replicas together
    hardware: HardwarePlan
    ops: tuple[OpChoice, ...] = ()
    floors: tuple[Floor, ...] = ()


class Layout(Frozen, frozen=True, kw_only=True):
    """Who does what."""

    num_ranks: int
    num_nodes: int
    num_domains: int
    roles: tuple[RolePlan, ...]
    ranks: tuple[RankPlan, ...]

    def role(self, name: str) -> RolePlan:
        """The role called `name`; KeyError where the plan has none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(name)


class MemoryItem(Frozen, frozen=True, kw_only=True):
    """One line of a rank's budget. `exact` items equal what is allocated; the others are estimates."""

    name: str
    num_bytes: int
    place: Place
    exact: bool = True
    note: str = ""


class RankMemory(Frozen, frozen=True, kw_only=True):
    """The budget of every rank in `ranks` ("0-63"), all alike."""

    ranks: str
    role: str
    items: tuple[MemoryItem, ...]
    device_bytes: int  # used of usable_bytes
    host_bytes: int
    headroom_bytes: int
    num_blocks: int
    num_state_slots: int
    num_snapshots: int = 0  # of the state of a sequence, for the prefix cache
    step_bytes: int = 0  # of the workspace, what only a step has; the rest of it stays between steps

    @property
    def cache_bytes(self) -> int:
        """Of blocks and snapshots: what "auto" may divide anew."""
        return sum(item.num_bytes for item in self.items if item.name in ("kv_pool", "snapshots"))

    def item(self, name: str) -> MemoryItem:
        """The line called `name`; KeyError where the plan has none."""
        for item in self.items:
            if item.name == name:
                return item
        raise KeyError(name)


class Capacity(Frozen, frozen=True, kw_only=True):
    """What fits into the caches of one attention rank, and into all of them together."""

    num_blocks: int
    tokens: int
    sequences: int  # by state slots
    sequences_at_max_len: int
    all_tokens: int
    all_sequences: int


class Node(Frozen, frozen=True, kw_only=True):
    """One part of the engine graph. `implementation` is "module:attribute"; `settings` are its option's keys."""

    name: str
    seam: str
    implementation: str
    needs: tuple[str, ...] = ()
    option: str = ""  # the option to name when the implementation is not in this version
    reason: str = ""
    runner_up: str = ""
    settings: dict[str, Any] = {}
    planned: bool = False  # its code is not in this version, or no run takes it yet


class Numerics(Frozen, frozen=True, kw_only=True):
    """What fixes every bit of an output besides weights and ops."""

    numerics: Literal["full", "kv", "none"]
    dtype: Literal["float32", "float64", "bfloat16"]
    threads: int  # intra-op threads of the CPU ops
    verify: Literal["none", "coupled", "rejection"]
    replay: str
    replay_keep_tokens: int  # 0: all
    replay_on_hit: Literal["snapshot", "exact", "bounded"]
    reproducible: bool


class Drafting(Frozen, frozen=True, kw_only=True):
    """Speculation as settled: depth 0 is off. `backtrack` is how many newest tokens a rejection may take back."""

    kind: str
    depth: int
    verify_length: int
    backtrack: int
    num_draft_layers: int


class Plan(Frozen, frozen=True, kw_only=True):
    """All of it. Nothing below asks again what hardware it is on.

    `hardware`, `ops` and `floors` are those of the first role; each role of the layout has its own.
    """

    deepinfer: str  # version
    task: str
    model: ModelPlan
    hardware: HardwarePlan
    layout: Layout
    memory: tuple[RankMemory, ...]
    capacity: Capacity
    cache: CacheLayout
    numerics: Numerics
    drafting: Drafting
    scheduler: Scheduler
    sampling: Sampling
    graph: tuple[Node, ...]
    ops: tuple[OpChoice, ...]
    floors: tuple[Floor, ...]
    cost: CostPlan
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    unbuilt: tuple[str, ...] = ()  # what of it this version has no code to run
    choices: dict[str, str] = {}  # group → option, as chosen
    serving: Serving | None = None  # of launch task.run=serve: what rank 0 of each world serves with
    asked_sampling: tuple[str, ...] = ()  # of it, too: fields of `sampling` that somebody chose
    rank_digest: str = ""
    numerics_digest: str = ""

    def node(self, name: str) -> Node:
        """The part of the engine graph with this name, which every plan has."""
        return next(node for node in self.graph if node.name == name)

    def to_json(self) -> bytes:
        """The plan as JSON; `from_json` gives back an equal plan."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes | str) -> "Plan":
        """The plan, without the seal of `launch`. Raises msgspec.ValidationError where it is not one of this version."""
        try:
            written = msgspec.json.decode(data)
        except RecursionError as error:
            raise msgspec.ValidationError("no plan is nested so deeply") from error
        if isinstance(written, dict):
            written.pop(SEAL, None)
        return msgspec.convert(written, Plan, str_keys=True)
