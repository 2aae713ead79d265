"""How many tokens and sequences fit, and what is wrong when too few do."""

from collections.abc import Mapping

from msgspec import Struct, structs

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.config.specs import Parallel, PrefixCache
from deepinfer.plan.cache_shares import CacheShares, cache_shares, least_snapshots
from deepinfer.plan.layout import lay_out, valid_expert_degrees
from deepinfer.plan.ledger import OF, Ledger
from deepinfer.plan.memory import Scene, budget, fixed_bytes, rank_groups, scene_of, weight_items
from deepinfer.plan.memory_levers import DEGREES, GB, fitting_steps, held_bytes, levers_text, typed_degrees
from deepinfer.plan.roles import key_of
from deepinfer.plan.types import Capacity, Layout, RankMemory, RolePlan


class Fit(Struct, frozen=True, kw_only=True):
    """The budgets of all ranks and what they can hold."""

    memory: tuple[RankMemory, ...]
    capacity: Capacity
    max_model_len: int


def fit(scenes: Mapping[str, Scene], layout: Layout, ledger: Ledger) -> Fit:
    """Fill every rank's memory with cache and settle the longest sequence; `scenes` are by role.

    Problems go to the ledger (exit code 6).
    """
    decode = layout.roles[-1]  # answers live there, so it decides what can run at once
    case, cache = scenes[decode.name].case, scenes[decode.name].cache
    asked_len = case.spec.model.max_model_len
    longest = case.config.max_position_embeddings if asked_len == "auto" else asked_len
    groups = [(scenes[role.name], role, rank, numbers) for role, rank, numbers in rank_groups(layout)]
    blocks: dict[str, int] = {}
    snapshots: dict[str, int] = {}
    shares: dict[str, CacheShares] = {}
    too_big: list[Problem] = []
    for scene, role, rank, numbers in groups:
        free = scene.usable_bytes - fixed_bytes(scene, weight_items(scene, rank, role))
        share = shares[role.name] = cache_shares(scene, free, longest)
        blocks[role.name] = min(share.num_blocks, blocks.get(role.name, share.num_blocks))
        snapshots[role.name] = min(share.num_snapshots, snapshots.get(role.name, share.num_snapshots))
        if free < 0:
            too_big.append(_too_big(scene, layout, budget(scene, role, rank, numbers, 0)))
        elif share.num_blocks * cache.padded_block_bytes > free:
            too_big.append(_pool_too_big(scene, layout, share.num_blocks, free))
        elif share.num_snapshots * cache.padded_state_bytes > free - share.num_blocks * cache.padded_block_bytes:
            too_big.append(_snapshots_too_big(scene, share, free))
    ledger.problems += too_big
    memory = tuple(
        budget(scene, role, rank, numbers, blocks[role.name], snapshots[role.name])
        for scene, role, rank, numbers in groups
    )
    _decide_pools(scenes[decode.name], blocks, {name: share.block_rule for name, share in shares.items()}, ledger)
    _decide_snapshots(scenes[decode.name], snapshots, shares, ledger)
    if not too_big:
        ledger.warnings += _few_snapshots(scenes[decode.name], min(snapshots.values()), memory)
    smallest = min(blocks.values()) * cache.block_tokens
    if smallest < longest and not too_big:
        longest = _shorten(scenes[decode.name], layout, smallest, longest, ledger)
    elif asked_len == "auto" and not too_big:
        ledger.decide("model.max_model_len", longest, "max_position_embeddings of config.json, and the cache holds it")
    capacity = _capacity(scenes[decode.name], decode, blocks[decode.name], longest)
    return Fit(memory=memory, capacity=capacity, max_model_len=longest)


def _decide_pools(scene: Scene, blocks: Mapping[str, int], rules: Mapping[str, str], ledger: Ledger) -> None:
    """Write down what each role's pool became: `blocks` and the rule of each, by role."""
    cache, block = scene.case.spec.cache, scene.cache.padded_block_bytes
    of = {name: "" if name == "all" else f"{OF}{name}" for name in rules}
    for name, rule in rules.items():
        if cache.memory_bytes == "auto":
            ledger.decide(f"cache.memory_bytes{of[name]}", blocks[name] * block, rule or "cache.num_blocks was given")
    for name in rules:
        if cache.num_blocks == "auto":
            fill = f"as many blocks of {block:,} B as cache.memory_bytes holds"
            ledger.decide(f"cache.num_blocks{of[name]}", blocks[name], fill)


def _decide_snapshots(
    scene: Scene, snapshots: Mapping[str, int], shares: Mapping[str, CacheShares], ledger: Ledger
) -> None:
    """The same for what the prefix cache saves of window keys."""
    cache = scene.case.spec.cache
    if not isinstance(cache, PrefixCache) or cache.snapshot_bytes != "auto":
        return
    for name, share in shares.items():
        of = "" if name == "all" else f"{OF}{name}"
        num_bytes = snapshots[name] * scene.cache.padded_state_bytes
        ledger.decide(f"cache.snapshot_bytes{of}", num_bytes, share.snapshot_rule)


def _few_snapshots(scene: Scene, count: int, memory: tuple[RankMemory, ...]) -> list[str]:
    """A warning where hits depend on saved states and running sequences take each other's. None is a choice."""
    cache, least = scene.case.spec.cache, least_snapshots(scene)
    if not isinstance(cache, PrefixCache) or scene.case.numerics.replay_on_hit != "snapshot":
        return []
    if count >= least or cache.snapshot_bytes == 0:
        return []
    state = scene.cache.padded_state_bytes
    room = min(rank.headroom_bytes for rank in memory) // state
    fix = f"cache.snapshot_bytes={least * state}" if count + room >= least else "replay.on_hit=exact"
    found = f"{count:,} saved state{'s' * (count != 1)} of {state:,} B are fewer than scheduler.max_num_seqs + 1 = {least:,}"
    return [f"{found}: sequences take each other's, and few prompts or none will hit the prefix cache; {fix}"]


def _capacity(scene: Scene, role: RolePlan, num_blocks: int, longest: int) -> Capacity:
    tokens, slots = num_blocks * scene.cache.block_tokens, scene.case.spec.scheduler.max_num_seqs
    caches = role.replicas * role.attention_dp  # context ranks all hold the same keys
    return Capacity(
        num_blocks=num_blocks,
        tokens=tokens,
        sequences=slots,
        sequences_at_max_len=min(slots, num_blocks // max(1, -(-longest // scene.cache.block_tokens))),
        all_tokens=tokens * caches,
        all_sequences=slots * caches,
    )


def _shorten(scene: Scene, layout: Layout, tokens: int, longest: int, ledger: Ledger) -> int:
    """The cache is smaller than one longest sequence: an "auto" gives way, a number does not."""
    block = scene.cache.padded_block_bytes
    if scene.case.spec.model.max_model_len == "auto" and tokens >= scene.cache.block_tokens:
        rule = f"the cache holds {tokens:,} tokens, the model could take {longest:,}"
        ledger.decide("model.max_model_len", tokens, rule, runner_up=longest)
        return tokens
    need = -(-longest // scene.cache.block_tokens) * block
    cache = scene.case.spec.cache
    fills_device = cache.num_blocks == cache.memory_bytes == "auto" and not scene.role.is_cpu
    more = levers_text(scene, layout) if fills_device else ""  # a pool of a given size does not grow with what is left
    ledger.refuse(
        Problem(
            asked=f"model.max_model_len={longest}",
            found=f"the cache holds {tokens:,} tokens in {tokens // scene.cache.block_tokens:,} blocks",
            why="; ".join(filter(None, (f"one such sequence needs {need:,} B of cache", more))),
            fix=f"model.max_model_len={tokens}" if tokens else f"cache.memory_bytes={need}",
            code=ExitCode.MEMORY,
        )
    )
    return longest


def _pool_too_big(scene: Scene, layout: Layout, count: int, free: int) -> Problem:
    cache, block = scene.case.spec.cache, scene.cache.padded_block_bytes
    most = free // block
    by_number = cache.num_blocks != "auto"
    left = f"{free / GB:.2f} GB are left beside weights and state, {most * scene.cache.block_tokens:,} tokens of cache"
    return Problem(
        asked=f"cache.num_blocks={cache.num_blocks}" if by_number else f"cache.memory_bytes={cache.memory_bytes}",
        found=f"{count:,} blocks take {count * block / GB:.2f} GB",
        why="; ".join(filter(None, (left, levers_text(scene, layout)))),
        fix=f"cache.num_blocks={most}" if by_number else f"cache.memory_bytes={most * block}",
        code=ExitCode.MEMORY,
    )


def _snapshots_too_big(scene: Scene, share: CacheShares, free: int) -> Problem:
    cache, state = scene.case.spec.cache, scene.cache.padded_state_bytes
    assert isinstance(cache, PrefixCache)
    left = free - share.num_blocks * scene.cache.padded_block_bytes
    return Problem(
        asked=f"cache.snapshot_bytes={cache.snapshot_bytes}",
        found=f"{share.num_snapshots:,} saved states of {state:,} B take {share.num_snapshots * state / GB:.2f} GB",
        why=f"{left / GB:.2f} GB are left beside weights, state and {share.num_blocks:,} cache blocks",
        fix="cache.snapshot_bytes=auto",
        code=ExitCode.MEMORY,
    )


def _too_big(scene: Scene, layout: Layout, memory: RankMemory) -> Problem:
    case, num_ranks = scene.case, scene.role.num_ranks
    side = "" if memory.role == "all" else f" of the {memory.role} side"
    held = sorted((item for item in memory.items if item.place == "device"), key=lambda item: -item.num_bytes)
    parts = ", ".join(f"{item.name} {item.num_bytes / GB:.1f}" for item in held if item.num_bytes >= GB / 10)
    where = f"ranks {memory.ranks}" if layout.num_ranks > 1 else "the rank"
    limit = "of this machine's memory may be used for it" if scene.role.is_cpu else "of each device may be used"
    room = f"{scene.usable_bytes / GB:.1f} GB {limit}, so no token fits"
    return Problem(
        asked=f"model={case.model_name} on {scene.role.chip.name}, {num_ranks} rank{'s' * (num_ranks > 1)}{side}",
        found=f"{where} would hold {memory.device_bytes / GB:.1f} GB before the first cache block (GB: {parts})",
        why="; ".join(filter(None, (f"{_expansion(scene, memory)}{room}", levers_text(scene, layout)))),
        fix=_smaller(scene, layout),
        code=ExitCode.MEMORY,
    )


def _expansion(scene: Scene, memory: RankMemory) -> str:
    """Why a rank can hold more than the checkpoint has: torch ops compute with weights in the model's dtype."""
    whole = sum(item.num_bytes for item in scene.weights.classes())
    names = {item.name for item in scene.weights.classes()}
    held = sum(item.num_bytes for item in memory.items if item.name in names)
    if "expanded" not in scene.resident.values() or held <= scene.usable_bytes:
        return ""
    return f"the checkpoint's {whole / GB:.1f} GB, packed FP8 and FP4, become {scene.case.numerics.dtype} here; "


def _smaller(scene: Scene, layout: Layout) -> str:
    """What to type: fewer sequences or rows where the weights alone would fit, else more ranks or a smaller model."""
    if scene.role.parallel.engram not in ("auto", "host") and held_bytes(scene, "host") <= scene.usable_bytes:
        return f"{key_of(scene.role.name)}.engram=host"
    place = next(role.engram for role in layout.roles if role.name == scene.role.name)
    return fitting_steps(scene, place) or _smallest_layout(scene)


def _smallest_layout(scene: Scene) -> str:
    """The fewest ranks that hold the model with experts spread over all of them, tables on the hosts if need be."""
    case, role = scene.case, scene.role.name
    if scene.role.is_cpu:
        return "model=v41_tiny" if case.model_name == "v41_flash" else ""
    drafting = case.drafting.num_draft_layers > 0
    for degree in DEGREES:
        if degree not in valid_expert_degrees(case.config, degree, 0, drafting=drafting):
            continue
        spread = Parallel(attention_dp=degree, context=1, expert=degree, redundant_experts=0, engram="host")
        one = structs.replace(scene.role, replicas=1, parallel=spread)
        layout = lay_out((one,), case.config, case.hardware, {role: "host"})
        spread_out = scene_of(case, one, scene.ops)
        needs = [fixed_bytes(spread_out, weight_items(spread_out, rank, plan)) for plan, rank, _ in rank_groups(layout)]
        if max(needs) <= scene.usable_bytes:
            typed = typed_degrees(scene.role, degree)
            on_host = f" {key_of(role)}.engram=host"
            return typed if scene.role.parallel.engram in ("auto", "host") else typed + on_host
    return ""
