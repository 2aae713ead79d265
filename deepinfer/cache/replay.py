"""Where a sequence begins to compute, and which window keys exist for it: bounded replay, and what follows a prefix hit.

Bounded replay: in the layers from the boundary on, the rows of a prompt's last `keep_tokens` tokens see no window key before
them. After a hit on cached blocks, the window keys of the cached tokens come from a snapshot, or the newest cached tokens
are computed again without writing to the blocks, which are shared.
"""

from dataclasses import dataclass
from typing import Literal

OnHit = Literal["snapshot", "exact", "bounded"]


@dataclass(frozen=True)
class Floors:
    """Positions, as in StepPlan; `start` is the first row to compute."""

    start: int
    window_from: int
    upper_from: int
    write_from: int
    approximate: bool = False  # whether the hit made it so; bounded replay itself is the same for everyone


@dataclass(frozen=True)
class Replay:
    """One model and one choice of `replay`. `keep_tokens` 0: every row passes every layer."""

    keep_tokens: int
    on_hit: OnHit
    sliding_window: int
    num_layers: int  # of the trunk
    boundary: int  # first layer that bounded replay cuts

    def upper_from(self, num_prompt_tokens: int) -> int:
        """Fixed at admission: chunks, preemption and recomputation keep it."""
        return max(0, num_prompt_tokens - self.keep_tokens) if self.keep_tokens else 0

    def longest_hit(self, num_prompt_tokens: int) -> int:
        """Most tokens of a prompt that may come from the cache: its last one is computed, and so is every kept row."""
        return self.upper_from(num_prompt_tokens) if self.keep_tokens else max(0, num_prompt_tokens - 1)

    def replayed(self, num_cached_tokens: int) -> int:
        """How many cached tokens are computed again.

        Layer l's keys of the newest W - 1 tokens are those of a cold run if W - 1 more tokens than for layer l - 1 are.
        """
        if self.on_hit == "snapshot":
            return 0
        exact_layers = self.boundary if self.keep_tokens else self.num_layers
        wanted = self.sliding_window if self.on_hit == "bounded" else (self.sliding_window - 1) * exact_layers
        return min(num_cached_tokens, wanted)

    def floors(self, num_prompt_tokens: int, num_cached_tokens: int = 0) -> Floors:
        """Of a sequence whose first `num_cached_tokens` tokens, whole blocks, are in the cache."""
        assert num_cached_tokens <= self.longest_hit(num_prompt_tokens), "a kept row or the last one is not computed"
        start = num_cached_tokens - self.replayed(num_cached_tokens)
        window_from = 0 if self.on_hit == "snapshot" else start
        return Floors(
            start=start,
            window_from=window_from,
            upper_from=max(window_from, self.upper_from(num_prompt_tokens)),
            write_from=num_cached_tokens,
            approximate=self.on_hit == "bounded" and start > 0,
        )
