"""The prefix cache of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.cache.prefix_cache import PrefixCache
    from deepinfer.plan.types import Plan, RankMemory


def build_prefix(plan: Plan, num_blocks: int | None = None, memory: RankMemory | None = None) -> PrefixCache | None:
    """None where nothing is kept for later requests. The cache has `num_blocks` (None: as planned) of a rank
    with this `memory` (None: the plan's first)."""
    node = next((node for node in plan.graph if node.name == "prefix_index"), None)
    if node is None:
        return None
    from deepinfer.cache.prefix_cache import PrefixCache
    from deepinfer.cache.replay import Replay
    from deepinfer.cache.warm_up import warm_up

    warm_up()
    config, numerics, memory = plan.model.config, plan.numerics, memory or plan.memory[0]
    replay = Replay(
        keep_tokens=numerics.replay_keep_tokens,
        on_hit=numerics.replay_on_hit,
        sliding_window=config.sliding_window,
        num_layers=config.num_hidden_layers,
        boundary=config.boundary,
    )
    more = max(memory.num_state_slots + 1, 2 * memory.num_snapshots) * plan.cache.padded_state_bytes
    return PrefixCache(
        num_blocks=memory.num_blocks if num_blocks is None else num_blocks,
        num_snapshots=memory.num_snapshots,
        block_tokens=plan.cache.block_tokens,
        snapshot_every=int(node.settings["snapshot_every"]),
        replay=replay,
        numerics_digest=plan.numerics_digest,
        more_snapshots=f"cache.snapshot_bytes={more}",
    )
