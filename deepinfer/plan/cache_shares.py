"""How the memory for caches is divided: blocks for the keys of tokens, snapshots for the state of cached prefixes."""

from msgspec import Struct

from deepinfer.config.specs import PrefixCache
from deepinfer.plan.memory import Scene, pool_bytes

SNAPSHOT_SHARE = 0.3  # of blocks and snapshots together: of the released model, one state for some 8,000 tokens


class CacheShares(Struct, frozen=True, kw_only=True):
    """Of one rank; the rules are those of what was "auto", else empty."""

    num_blocks: int
    num_snapshots: int
    block_rule: str
    snapshot_rule: str


def least_snapshots(scene: Scene) -> int:
    """Saved states below which running sequences take each other's: one that each may be writing, and one that is kept."""
    return scene.case.spec.scheduler.max_num_seqs + 1


def cache_shares(scene: Scene, free_bytes: int, wanted_tokens: int) -> CacheShares:
    """Blocks and snapshots as asked, or as many as may be taken of `free_bytes`."""
    cache, block, state = scene.case.spec.cache, scene.cache.padded_block_bytes, scene.cache.padded_state_bytes
    whole, block_rule = pool_bytes(scene, free_bytes, wanted_tokens)
    blocks = whole // block
    if not isinstance(cache, PrefixCache):
        return CacheShares(num_blocks=blocks, num_snapshots=0, block_rule=block_rule, snapshot_rule="")
    on_hit, asked = scene.case.numerics.replay_on_hit, cache.snapshot_bytes
    if asked != "auto":
        snapshots, rule = asked // state, ""
    elif on_hit != "snapshot":
        snapshots, rule = 0, f"replay.on_hit={on_hit} restores none"
    else:
        left = whole // 2 if block_rule else max(0, free_bytes - whole)
        together = whole if block_rule else whole / (1 - SNAPSHOT_SHARE)
        shared, least = int(together * SNAPSHOT_SHARE) // state, least_snapshots(scene)
        snapshots = max(0, min(max(shared, least), left // state))
        rule = f"{SNAPSHOT_SHARE:.0%} of what caches take, {state:,} B each"
        if snapshots > shared:
            rule = f"one for each of scheduler.max_num_seqs and one more, as far as memory goes, {state:,} B each"
    if block_rule:
        blocks = max(0, whole - snapshots * state) // block
    return CacheShares(num_blocks=blocks, num_snapshots=snapshots, block_rule=block_rule, snapshot_rule=rule)
