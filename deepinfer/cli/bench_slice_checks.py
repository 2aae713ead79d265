"""What stands against timing one rank of a layout here, and which of the asked steps fit beside its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import TYPE_CHECKING

from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import is_chip, load_chip
from deepinfer.config.fused import runs_fused
from deepinfer.config.quoting import plan_line
from deepinfer.config.tasks import Bench
from deepinfer.plan.quantities import size

if TYPE_CHECKING:
    from deepinfer.config.facts import Facts
    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan, RankMemory, RolePlan

ASKED = "task.slice=rank"
NOTHING = "nothing to measure"
WEIGHTS = ("embed", "head", "dense", "experts", "engram", "draft")  # of a plan's memory
SPARE_TOKENS = 8  # a sequence ends a little behind its newest row
LOGIT_BYTES = 4
NODE_RANKS = 8  # of the layout that is proposed in place of one that cannot be measured
NO_CODE_FIX = "hardware=h200 parallel=ep64"  # where not even the plan is possible
LEAST = 128  # tokens of the smallest step that is proposed


@dataclass(frozen=True)
class CacheRoom:
    """Bytes of a rank: what the plan leaves for caches and for the rows of a step, and what weights take of it."""

    weights: int
    left: int


@dataclass(frozen=True)
class Points:
    """Steps that fit: sequences × rows each × context, and lengths of prompts; how rows choose experts."""

    decode: tuple[tuple[int, int, int], ...]
    prompts: tuple[int, ...]
    routing: tuple[str, ...]

    def blocks(self, block_tokens: int) -> int:
        """That the largest of them takes."""
        needs = [sequences * -(-context // block_tokens) for sequences, _, context in self.decode]
        return max([*needs, *(-(-tokens // block_tokens) for tokens in self.prompts)], default=1)

    @property
    def sequences(self) -> int:
        return max((sequences for sequences, _, _ in self.decode), default=1)

    @property
    def longest(self) -> int:
        return max([*(context for _, _, context in self.decode), *self.prompts], default=1) + SPARE_TOKENS


def without_code(spec: Spec) -> str:
    """The name of the chip where it is asked for and no rank can be measured on it: whatever else is asked."""
    chip = spec.hardware
    if not isinstance(chip, Chip) or _has_code(chip.kind, chip.architecture.value):
        return ""
    return chip.name


def no_code(chip_name: str, fix: str) -> Problem:
    found, why = f"no code for {chip_name}", "the kernels of this version are for Hopper"
    return Problem(asked=ASKED, found=found, why=why, fix=fix, code=ExitCode.DEVICE)


def _has_code(kind: str, architecture: str) -> bool:
    return kind == "cpu" or runs_fused(kind, architecture)


def refuse_slice(plan: Plan, spec: Spec, facts: Facts, overrides: Sequence[str] = ()) -> None:
    """Raise Refused with everything that stands against it; `overrides` as typed, after --config-dir."""
    assert isinstance(spec.task, Bench)
    roles = plan.layout.roles
    others = [role.hardware for role in roles if not _has_code(role.hardware.kind, role.hardware.architecture)]
    if others:
        raise Refused([no_code(others[0].name, plan_line(overrides))])
    problems = [*_asked(plan, spec.task), *(problem for role in roles for problem in _role(plan, role))]
    problems += [problem for role in roles[:1] for problem in _device(role, facts, overrides)]
    if problems:
        raise Refused(list(dict.fromkeys(problems)))


def _asked(plan: Plan, task: Bench) -> Iterator[Problem]:
    if plan.model.weights != "dummy":
        found = f"model.weights={plan.model.weights}"
        why = "one rank's share is cut from no checkpoint, its weights are made up on the device"
        yield Problem(asked=ASKED, found=found, why=why, fix="model.weights=dummy", code=ExitCode.PLAN)
    if plan.numerics.numerics != "full":
        why = "its kernels read the release's packed formats"
        found = f"model.numerics={plan.numerics.numerics}"
        yield Problem(asked=ASKED, found=found, why=why, fix="model.numerics=full", code=ExitCode.PLAN)
    if not (task.slice_sequences or task.slice_prompts):
        asked = "task.slice_sequences=[] task.slice_prompts=[]"
        yield Problem(asked=asked, found="neither decode nor prefill is left", fix="task.slice_sequences=[32]")
    if task.slice_sequences and not task.slice_contexts:
        yield Problem(asked="task.slice_contexts=[]", found=NOTHING, fix="task.slice_contexts=[4Ki]")
    if not task.slice_routing:
        yield Problem(asked="task.slice_routing=[]", found=NOTHING, fix="task.slice_routing=[balanced]")


def _role(plan: Plan, role: RolePlan) -> Iterator[Problem]:
    even = _even_layout(plan)
    if role.redundant_experts:
        why = "where copies of experts lie follows from a load that nobody has measured"
        found = f"parallel.redundant_experts={role.redundant_experts}"
        yield Problem(asked=ASKED, found=found, why=why, fix="parallel.redundant_experts=0", code=ExitCode.PLAN)
    if role.context > 1:
        why = "ranks that share a prompt wait for each other's keys, and here is one rank"
        found = f"parallel.context={role.context}"
        yield Problem(asked=ASKED, found=found, why=why, fix=even, code=ExitCode.PLAN)
    elif drafts := _uneven_drafts(plan, role):
        found = f"{drafts} draft experts of {plan.model.name} over {role.expert} ranks leave a remainder"
        why = "every rank is to hold as many, for one of them stands for all"
        yield Problem(asked=ASKED, found=found, why=why, fix=even, code=ExitCode.PLAN)


def _uneven_drafts(plan: Plan, role: RolePlan) -> int:
    """Draft experts of a layer where the ranks cannot hold as many each, else 0. The trunk's are a rule of every plan's."""
    drafts = plan.model.config.dspark_n_routed_experts
    return drafts if drafts % role.expert else 0


def _even_layout(plan: Plan) -> str:
    """The largest layout of one node at which every rank holds as many experts of each kind."""
    config = plan.model.config
    ranks = gcd(NODE_RANKS, config.n_routed_experts, config.dspark_n_routed_experts)
    return f"parallel=ep{ranks}" if ranks > 1 else "parallel=single"


def _device(role: RolePlan, facts: Facts, overrides: Sequence[str]) -> Iterator[Problem]:
    """One device of the chip is enough, whatever the layout. A CPU must be asked for: it computes for minutes."""
    chip, machine = role.hardware, facts.machine
    if chip.kind == "cpu" and not any(word.startswith(("hardware=", "cluster=")) for word in overrides):
        found = "no hardware is asked for, and the CPU is what that means here"
        why = "on it plain torch is timed, which takes minutes and says nothing about an accelerator"
        yield Problem(asked=ASKED, found=found, why=why, fix="hardware=cpu", code=ExitCode.DEVICE)
    if chip.kind != "cuda" or any(is_chip(device, chip.name, chip.architecture) for device in machine.devices):
        return
    has = f"1 × {machine.devices[0].name}" if machine.devices else "no accelerator"
    found = f"one rank is measured on one {chip.name}, and this machine has {has}"
    why = "deepinfer plan answers for the layout here"
    yield Problem(asked=ASKED, found=found, why=why, fix=plan_line(overrides), code=ExitCode.DEVICE)


def slice_chip(spec: Spec, facts: Facts, role: RolePlan) -> Chip:
    """The chip of a role, as it was asked for."""
    asked = getattr(spec.deploy, role.name, None)
    hardware = spec.hardware if asked is None or not isinstance(asked.hardware, Chip) else asked.hardware
    if isinstance(hardware, Chip):
        return hardware
    return facts.chip if facts.chip is not None else load_chip(role.hardware.option)


def memory_of(plan: Plan, role: RolePlan) -> RankMemory:
    """The budget of a role's ranks."""
    return next(memory for memory in plan.memory if memory.role == role.name)


def room_of(plan: Plan, role: RolePlan) -> CacheRoom:
    memory = memory_of(plan, role)
    weights = sum(item.num_bytes for item in memory.items if item.place == "device" and item.name in WEIGHTS)
    return CacheRoom(weights=weights, left=role.hardware.usable_bytes - weights)


def fitting_points(plan: Plan, task: Bench, room: CacheRoom, phases: Sequence[str]) -> tuple[Points, list[str]]:
    """The steps that fit the rank's memory, and in words those that do not. Raises Refused where none does."""
    rows = [1, *([1 + plan.drafting.verify_length] if plan.drafting.num_draft_layers else [])]
    sizes = product(task.slice_contexts, rows, task.slice_sequences) if "decode" in phases else ()
    asked = [(sequences, each, context) for context, each, sequences in sizes]
    prompts = list(task.slice_prompts) if "prefill" in phases else []
    states = (1 + max(task.slice_sequences, default=1)) * plan.cache.padded_state_bytes
    kept = [point for point in asked if states + _decode_bytes(plan, *point) <= room.left]
    short = [tokens for tokens in prompts if states + _prompt_bytes(plan, tokens) <= room.left]
    notes = [
        f"{sequences:,} × {each} rows at {context:,} tokens do not fit beside the weights and are left out"
        for sequences, each, context in asked
        if (sequences, each, context) not in kept
    ]
    notes += [f"a prompt of {tokens:,} does not fit and is left out" for tokens in prompts if tokens not in short]
    if not kept and not short:
        found = f"no step fits: {size(room.left)} are left beside {size(room.weights)} of weights"
        raise Refused([Problem(asked=ASKED, found=found, fix=_smallest(plan, room, phases), code=ExitCode.MEMORY)])
    return Points(tuple(kept), tuple(short), tuple(task.slice_routing)), notes


def _smallest(plan: Plan, room: CacheRoom, phases: Sequence[str]) -> str:
    """The smallest step, where it fits; nothing where it does not either."""
    need = 2 * plan.cache.padded_state_bytes + max(_decode_bytes(plan, 1, 1, LEAST), _prompt_bytes(plan, LEAST))
    if need > room.left:
        return ""
    decode = f"task.slice_sequences=[1] task.slice_contexts=[{LEAST}]" if "decode" in phases else ""
    return f"{decode} task.slice_prompts=[{LEAST}]".strip()


def _decode_bytes(plan: Plan, sequences: int, each: int, context: int) -> int:
    blocks = sequences * -(-context // plan.cache.block_tokens)
    tokens = 4 * sequences * context  # that the device remembers
    return blocks * plan.cache.padded_block_bytes + tokens + _row_bytes(plan, sequences * each, sequences * each)


def _prompt_bytes(plan: Plan, tokens: int) -> int:
    chunk = min(tokens, plan.scheduler.max_num_batched_tokens)
    return -(-tokens // plan.cache.block_tokens) * plan.cache.padded_block_bytes + _row_bytes(plan, chunk, 1)


def _row_bytes(plan: Plan, rows: int, sampled: int) -> int:
    """Activations of the widest moment of a layer, streams, and logits: an estimate on the safe side."""
    c = plan.model.config
    streams, heads = 3 * c.hc_mult * c.hidden_size, 2 * c.num_attention_heads * c.head_dim
    experts = (c.num_experts_per_tok + 1) * 4 * c.hidden_size
    return 2 * rows * (streams + heads + experts) + sampled * c.vocab_size * LOGIT_BYTES
