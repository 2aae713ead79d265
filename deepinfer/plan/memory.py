"""The memory of every rank: what is held, what is left, and how much cache that makes. A `Scene` is of one role."""

from collections.abc import Sequence

from msgspec import Struct

from deepinfer.arch.cache import CacheLayout
from deepinfer.config.specs import PrefixCache
from deepinfer.plan.catalog import CLASS_OP
from deepinfer.plan.fused_sizes import run_bytes, shared_bytes
from deepinfer.plan.moving_experts import moving_items
from deepinfer.plan.role_workspace import exchange_bytes, role_workspace
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.settle import Case
from deepinfer.plan.sizes import Weights
from deepinfer.plan.types import Layout, MemoryItem, OpChoice, RankMemory, RankPlan, Resident, RolePlan

CPU_POOL_SHARE = 0.5  # of what is left beside weights: a laptop has other work to do
CPU_POOL_CAP = 2 * 2**30


class Scene(Struct, frozen=True, kw_only=True):
    """Everything that the budget of one role's ranks depends on."""

    case: Case
    role: RoleCase
    weights: Weights
    cache: CacheLayout
    ops: tuple[OpChoice, ...]
    workspace_bytes: int
    step_bytes: int  # of the workspace, what only a step has
    state_bytes: int  # of all state slots of one rank
    run_bytes: dict[str, int] = {}  # what a run keeps on the device besides, by name

    @property
    def usable_bytes(self) -> int:
        return self.case.hardware[self.role.name].usable_bytes

    @property
    def resident(self) -> dict[str, Resident]:
        by_op = {choice.op: choice.resident for choice in self.ops}
        return {name: by_op[op] for name, op in CLASS_OP.items()}

    @property
    def held(self) -> dict[str, Resident]:
        """How each class lies in memory: fused operations take all of them packed, torch's twins of them too."""
        return dict.fromkeys(CLASS_OP, "packed") if self.role.is_fused else self.resident

    def shared_bytes(self, group: str) -> int:
        """Of what every rank holds of a class."""
        dtype = self.case.numerics.dtype
        if self.role.is_fused:
            kernels = all(choice.backend != "reference" for choice in self.ops)
            return shared_bytes(self.case.config, group, dtype, kernels=kernels)
        return self.weights.shared(group, self.held[group], dtype)


def scene_of(case: Case, role: RoleCase, ops: tuple[OpChoice, ...]) -> Scene:
    """What a role's ranks are reckoned from; sizes hold for the longest sequence that is asked for."""
    config, numerics, model, scheduler = case.config, case.numerics, case.spec.model, case.spec.scheduler
    cache = CacheLayout.of(
        config,
        numerics=numerics.numerics,
        dtype=numerics.dtype,
        block_tokens=case.spec.cache.block_tokens,
        num_draft_layers=case.drafting.num_draft_layers,
        backtrack=case.drafting.backtrack,
    )
    longest = config.max_position_embeddings if model.max_model_len == "auto" else model.max_model_len
    workspace = role_workspace(case, role, cache, ops, longest)
    slots, drafts = scheduler.max_num_seqs, (case.drafting, numerics.verify)
    return Scene(
        case=case,
        role=role,
        weights=Weights(config),
        cache=cache,
        ops=ops,
        workspace_bytes=workspace.kept + workspace.step,
        step_bytes=workspace.step,
        state_bytes=(slots + _padding_slots(role)) * cache.padded_state_bytes,
        run_bytes={
            **run_bytes(config, cache, *drafts, slots=slots, max_model_len=longest),
            **exchange_bytes(case, role),
        }
        if role.is_fused
        else {},
    )


def _padding_slots(role: RoleCase) -> int:
    """State that padded rows of a step write to, where steps are padded."""
    return int(role.is_fused)


def weight_items(scene: Scene, rank: RankPlan, role: RolePlan) -> list[MemoryItem]:
    """The weights that one rank holds, a line for each class."""
    case, weights, resident, dtype = scene.case, scene.weights, scene.held, scene.case.numerics.dtype
    items = [
        MemoryItem(name=name, num_bytes=scene.shared_bytes(name), place="device") for name in ("embed", "head", "dense")
    ]
    held = rank.experts[1] - rank.experts[0]
    items.append(
        MemoryItem(
            name="experts",
            num_bytes=weights.experts("experts", resident["experts"], dtype, held),
            place="device",
            note=f"{held} of {case.config.n_routed_experts} a layer, {resident['experts']}",
        )
    )
    items += moving_items(scene, rank, role)
    items.append(_engram(scene, rank, role))
    items.append(_draft(scene, rank))
    if case.config.vision is not None:
        items.append(MemoryItem(name="vision", num_bytes=0, place="nowhere", note="skipped: text only"))
    return items


def _engram(scene: Scene, rank: RankPlan, role: RolePlan) -> MemoryItem:
    row_bytes = scene.weights.engram_row_bytes(scene.held["engram"], scene.case.numerics.dtype)
    rows = num_engram_rows(rank)
    host = role.engram == "host" and not scene.role.is_cpu
    where = "memory" if scene.role.is_cpu else "host memory" if host else "device memory"
    total = sum(scene.case.config.engram_num_embeddings)
    return MemoryItem(
        name="engram",
        num_bytes=rows * row_bytes,
        place="host" if host else "device",
        note=f"{rows:,} of {total:,} rows of {row_bytes} B in {where}",
    )


def _draft(scene: Scene, rank: RankPlan) -> MemoryItem:
    case, weights, kind = scene.case, scene.weights, scene.held["draft"]
    if not case.drafting.num_draft_layers:
        return MemoryItem(
            name="draft", num_bytes=0, place="nowhere", note=f"not loaded: speculation={case.drafting.kind}"
        )
    held = rank.draft_experts[1] - rank.draft_experts[0]
    num_bytes = scene.shared_bytes("draft")
    num_bytes += weights.experts("draft", kind, case.numerics.dtype, held)
    note = f"{case.drafting.num_draft_layers} layers, {held} of {case.config.dspark_n_routed_experts} experts a layer"
    return MemoryItem(name="draft", num_bytes=num_bytes, place="device", note=note)


def rank_groups(layout: Layout) -> list[tuple[RolePlan, RankPlan, list[int]]]:
    """Ranks that hold as many experts, together: role, the fullest of them, and all their numbers.

    Shares of the n-gram tables may differ by a row a table inside a group.
    """
    roles: dict[str, RolePlan] = {role.name: role for role in layout.roles}
    groups: dict[tuple[str, int, int], tuple[RankPlan, list[int]]] = {}
    for rank in layout.ranks:
        key = (rank.role, rank.experts[1] - rank.experts[0], rank.draft_experts[1] - rank.draft_experts[0])
        fullest, numbers = groups.get(key, (rank, []))
        numbers.append(rank.rank)
        groups[key] = (max(fullest, rank, key=num_engram_rows), numbers)
    return [(roles[role], fullest, numbers) for (role, _, _), (fullest, numbers) in groups.items()]


def num_engram_rows(rank: RankPlan) -> int:
    """Rows of all n-gram tables that a rank holds."""
    return sum(stop - start for start, stop in rank.engram_rows)


def fixed_bytes(scene: Scene, items: Sequence[MemoryItem]) -> int:
    """Device bytes that are taken before the first cache block."""
    held = sum(item.num_bytes for item in items if item.place == "device")
    return held + scene.workspace_bytes + scene.state_bytes + sum(scene.run_bytes.values())


def pool_bytes(scene: Scene, free_bytes: int, wanted_tokens: int) -> tuple[int, str]:
    """Bytes for the KV pool, as asked or as many as may be taken of `free_bytes`; and the rule if it was "auto"."""
    cache, block = scene.case.spec.cache, scene.cache.padded_block_bytes
    if cache.num_blocks != "auto":
        return cache.num_blocks * block, ""
    if cache.memory_bytes != "auto":
        return cache.memory_bytes, ""
    limits = {"all that is left of the device": free_bytes}
    if scene.role.is_cpu:
        limits = {
            f"{CPU_POOL_SHARE:.0%} of what is left beside weights": int(free_bytes * CPU_POOL_SHARE),
            f"at most {CPU_POOL_CAP // 2**30} GiB of a CPU's memory": CPU_POOL_CAP,
        }
    if not isinstance(cache, PrefixCache):  # which keeps blocks of finished requests, so more always helps
        blocks_each = -(-wanted_tokens // scene.cache.block_tokens)
        limits["scheduler.max_num_seqs sequences of model.max_model_len tokens need no more"] = (
            blocks_each * scene.case.spec.scheduler.max_num_seqs * block
        )
    rule = min(limits, key=limits.__getitem__)
    return max(0, limits[rule]), rule


def budget(
    scene: Scene, role: RolePlan, rank: RankPlan, numbers: list[int], num_blocks: int, num_snapshots: int = 0
) -> RankMemory:
    """The table of one group of ranks."""
    case, cache = scene.case, scene.cache
    slots = case.spec.scheduler.max_num_seqs
    items = weight_items(scene, rank, role)
    items += [
        MemoryItem(
            name="kv_pool",
            num_bytes=num_blocks * cache.padded_block_bytes,
            place="device",
            note=f"{num_blocks:,} blocks of {cache.padded_block_bytes:,} B for {cache.block_tokens} tokens",
        ),
        MemoryItem(
            name="state",
            num_bytes=scene.state_bytes,
            place="device",
            note=f"{slots} sequences of {cache.padded_state_bytes:,} B{', and padded rows' * _padding_slots(scene.role)}",
        ),
        *(_snapshots(scene, num_snapshots) if num_snapshots else ()),
        *(MemoryItem(name=name, num_bytes=num_bytes, place="device") for name, num_bytes in scene.run_bytes.items()),
        MemoryItem(name="workspace", num_bytes=scene.workspace_bytes, place="device", exact=False, note="estimate"),
    ]
    device_bytes = sum(item.num_bytes for item in items if item.place == "device")
    return RankMemory(
        ranks=spans(numbers),
        role=role.name,
        items=tuple(items),
        device_bytes=device_bytes,
        host_bytes=sum(item.num_bytes for item in items if item.place == "host"),
        headroom_bytes=scene.usable_bytes - device_bytes,
        num_blocks=num_blocks,
        num_state_slots=slots,
        num_snapshots=num_snapshots,
        step_bytes=scene.step_bytes,
    )


def _snapshots(scene: Scene, count: int) -> tuple[MemoryItem]:
    each = scene.cache.padded_state_bytes
    note = f"{count:,} saved states of {each:,} B for cached prefixes"
    return (MemoryItem(name="snapshots", num_bytes=count * each, place="device", note=note),)


def spans(numbers: Sequence[int]) -> str:
    """Rising numbers as text: [0, 1, 2, 5] → "0-2,5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
