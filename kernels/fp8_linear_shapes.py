"""How a dense FP8 product is cut: which variant of cuda_fp8_linear.cu a call takes. It changes times, never bits.

Every variant adds K up in the same order (`num_segments`, by the weight's shape alone), so that the choice is free: the variant
whose time is least, by times measured on an H200.

Legend: T rows · K inputs · N outputs.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache

SEGMENT_ROWS, STEP = 128, 64  # of weight: what segments are counted by; columns a step
# clusters of so many blocks that run at once on an H200, of one and of two blocks a processor
CLUSTERS = {2: (66, 132), 3: (39, 79), 4: (30, 62), 5: (22, 47), 6: (17, 39), 7: (15, 32), 8: (15, 30)}
CLUSTER_BLOCKS = 219  # that segments are to fill, of two a processor on 132
SEGMENTS = (8, 6, 5, 4, 3, 2)
BUSY = 0.9  # of the processors, before blocks of four warpgroups are taken


@dataclass(frozen=True)
class Shape:
    """How a launch is cut: the macros of cuda_fp8_linear.cu.

    `sums`: CHAIN where K is one segment; else SEQUENCE, or CLUSTER and SENT, which have `each` segments a block.
    """

    tokens: int
    warpgroups: int
    resident: int
    depth: int
    sums: str
    each: int = 1

    def cluster(self, segments: int) -> int:
        """Blocks that share a tile."""
        return segments // self.each if self.sums in ("CLUSTER", "SENT") else 1

    def tiles(self, num_tokens: int, num_outputs: int) -> int:
        return -(-num_tokens // self.tokens) * (num_outputs // (64 * self.warpgroups))

    def at_once(self, segments: int, processors: int) -> int:
        """Tiles that are computed at the same time."""
        blocks = self.cluster(segments)
        if blocks == 1:
            return processors * self.resident
        return max(1, CLUSTERS[blocks][self.resident - 1] * processors // 132)


@dataclass(frozen=True)
class Timed:
    """Microseconds on an H200: `fixed_us` a round of tiles that run at once, `step_us` a step of 64 columns, `call_us` once.

    Two blocks of a processor overlap, so that their last round need not be a whole one.
    """

    shape: Shape
    fixed_us: float
    step_us: float
    call_us: float = 0.0

    def us(self, num_tokens: int, num_outputs: int, num_inputs: int, segments: int, processors: int) -> float:
        shape = self.shape
        rounds = max(1.0, shape.tiles(num_tokens, num_outputs) / shape.at_once(segments, processors))
        rounds = math.ceil(rounds) if shape.resident == 1 else rounds
        return self.call_us + rounds * (self.fixed_us + num_inputs / STEP / shape.cluster(segments) * self.step_us)


SPLIT = (
    *(
        Timed(Shape(tokens, 2, 2, 2, "SENT"), fixed, step)
        for tokens, fixed, step in ((8, 1.7, 0.4), (16, 1.9, 0.41), (32, 2.6, 0.42))
    ),
    Timed(Shape(64, 2, 2, 1, "SENT"), 3.0, 0.58),
    Timed(Shape(64, 2, 2, 2, "CLUSTER"), 5.2, 0.45),
    Timed(Shape(96, 2, 2, 1, "CLUSTER"), 6.3, 0.6),
    *(
        Timed(Shape(tokens, 2, 1, 1, "CLUSTER"), fixed, step)
        for tokens, fixed, step in ((96, 7.3, 0.29), (128, 7.0, 0.33), (192, 9.2, 0.4), (256, 10.3, 0.53))
    ),
    Timed(Shape(128, 4, 1, 1, "CLUSTER"), 9.0, 0.66),
    Timed(Shape(128, 2, 1, 1, "CLUSTER", each=2), 7.0, 0.34),
    *(
        Timed(Shape(tokens, 2, 1, 1, "SEQUENCE"), 0.0, step, 3.6)
        for tokens, step in ((128, 0.33), (160, 0.4), (192, 0.457))
    ),
)
WHOLE = (
    *(
        Timed(Shape(tokens, 4, 1, 2, "CHAIN"), 3.0, step)
        for tokens, step in ((8, 0.4), (16, 0.43), (32, 0.45), (96, 0.65))
    ),
    *(
        Timed(Shape(tokens, 2, 2, 2, "CHAIN"), 2.0, step)
        for tokens, step in ((8, 0.52), (16, 0.52), (32, 0.52), (64, 0.58))
    ),
    Timed(Shape(96, 2, 2, 1, "CHAIN"), 3.0, 0.7),
    *(
        Timed(Shape(tokens, 2, 1, 1, "CHAIN"), 0.0, step, 3.2)
        for tokens, step in ((128, 0.39), (192, 0.525), (256, 0.69))
    ),
)


@cache
def num_segments(num_outputs: int, num_inputs: int) -> int:
    """Parts of K whose sums are added in order: as many as run at once with few tokens. By the weight's shape alone."""
    most = min(CLUSTER_BLOCKS // (num_outputs // SEGMENT_ROWS), num_inputs // 512)
    return next((segments for segments in SEGMENTS if segments <= most), 1)


@lru_cache(maxsize=1 << 14)
def choose(
    num_tokens: int, num_outputs: int, num_inputs: int, segments: int, processors: int, groups: int = 1
) -> Shape:
    """The cut for one call: of the variants that can take it, the one with the least time."""

    def can(shape: Shape) -> bool:
        if num_outputs // groups % (64 * shape.warpgroups) or segments % shape.each or shape.each == segments > 1:
            return False
        if num_tokens > shape.tokens and (shape.resident > 1 or shape.each > 1):
            return False  # they are for one tile of rows
        tiles, at_once = shape.tiles(num_tokens, num_outputs), shape.at_once(segments, processors)
        return shape.warpgroups == 2 or segments > 1 or tiles >= BUSY * at_once * math.ceil(tiles / at_once)

    timed = [timed for timed in (WHOLE if segments == 1 else SPLIT) if can(timed.shape)]
    return min(timed, key=lambda timed: timed.us(num_tokens, num_outputs, num_inputs, segments, processors)).shape
