"""What is alive at once while a model of fused operations runs a step: bytes of a row, moment by moment.

A moment is named after the operation whose result is the last that it holds. Follows deepinfer/model/fused/;
tests/engine/test_planned_step.py traces that code's allocations and holds these sums to them.
"""

import math

from msgspec import Struct

from deepinfer.arch.config import V41Config
from deepinfer.arch.kernel_widths import is_fast

FLOAT, INT = 4, 4  # bytes
SCORE_BYTES = 256 << 20  # of index scores that exist at a time
LONGEST_CHOICE = 1 << 18  # scores of a row among which one launch chooses; longer rows are cut
ROUTING_NUMBERS = 5  # of a chosen expert: pick, weight, place, row, sorted weight
SPLIT_SLOTS = 32  # that one program of the general attention sums up


class StepShape(Struct, frozen=True, kw_only=True):
    """What of a step decides its bytes. `entries`: of the longest block table; `far`: a chunk is longer than a ring, and its
    keys go through a scratch store; `features`: of the draft module are kept; `load`: pairs of the rank over its rows' own."""

    rows: int
    entries: int
    far: bool = False
    features: bool = False
    load: float = 1.0


def forward_bytes(config: V41Config, shape: StepShape, itemsize: int) -> int:
    """Most that a forward pass holds besides weights and caches."""
    at = _Moments(config, shape, itemsize)
    moments = (at.engram(), at.attention(), at.experts())
    return max(shape.rows * max(moments), shape.rows * at.scoring() + at.scores())


class _Moments:
    """Bytes of one row at the moments of an upper layer that may be the widest."""

    def __init__(self, config: V41Config, shape: StepShape, itemsize: int) -> None:
        self.c, self.shape, self.itemsize = config, shape, itemsize
        streams, hidden = config.hc_mult, config.hidden_size * itemsize
        self.hidden, self.streams = hidden, streams * hidden
        self.coefficients = (2 * streams + streams**2) * FLOAT
        self.site = self.streams + 2 * hidden + self.coefficients  # streams, normed, quantised

    def kept(self) -> int:
        """Through all layers: numbers, rotations, windows, features, the streams before the last n-gram memory."""
        c = self.c
        numbers = INT * (c.engram_max_ngram_size + 20)
        windows = 2 * INT * c.sliding_window
        ropes = 4 * FLOAT * c.qk_rope_head_dim
        features = len(c.dspark_target_layer_ids) * self.hidden * self.shape.features
        mixed = self.streams if len(c.engram_layer_ids) and max(c.engram_layer_ids) > 0 else 0
        return numbers + windows + ropes + features + mixed

    def before(self) -> int:
        """And of the layer before: its streams, output and coefficients."""
        return self.kept() + self.streams + self.hidden + self.coefficients

    def chosen(self) -> int:
        """Entries by index source, and candidate blocks."""
        upper = sum(layer >= self.c.boundary for layer in self.c.index_source_layer_ids)
        return INT * (upper * self.c.index_topk + self.c.candidate_topk_blocks)

    def latents(self) -> int:
        c = self.c
        return self.itemsize * (2 * c.q_lora_rank + c.head_dim) + FLOAT * c.index_n_heads

    def engram(self) -> int:
        """At the sum with the memory: the streams three times more, its rows and what they become."""
        c = self.c
        if not c.engram_layer_ids:
            return 0
        heads = (c.engram_max_ngram_size - 1) * c.engram_n_heads
        memory = heads * (8 + c.engram_head_dim * self.itemsize)
        return self.before() + self.site + self.streams + memory + (c.hc_mult + 1) * self.hidden

    def heads(self) -> int:
        return self.c.num_attention_heads * self.c.head_dim * self.itemsize

    def attention(self) -> int:
        """Queries and outputs of all heads; of several runs of rows the outputs twice; the general kernel's sums of parts."""
        c, several = self.c, self.heads() * self.shape.far
        parts = 0
        if not is_fast("sparse_attention", c):
            splits = max(1, sum(-(-slots // SPLIT_SLOTS) for slots in (c.sliding_window, c.index_topk)))
            parts = splits * c.num_attention_heads * (c.head_dim + 2) * FLOAT if splits > 1 else 0
        return self.before() + self.site + self.chosen() + self.latents() + 2 * self.heads() + max(several, parts)

    def experts(self) -> int:
        """Two sites, the attention's output, the shared expert's, and the rows of all pairs between two products and behind."""
        c = self.c
        chosen = c.num_experts_per_tok
        pairs = math.ceil(chosen * self.shape.load)
        routed = pairs * (self.itemsize * (c.moe_intermediate_size + c.hidden_size) + ROUTING_NUMBERS * INT)
        return self.before() + 2 * self.site + 2 * self.hidden + self.chosen() + c.n_routed_experts * FLOAT + routed

    def scoring(self) -> int:
        """While entries are chosen: queries of the index and of all heads, and what is chosen."""
        index = self.c.index_n_heads * self.c.index_head_dim * self.itemsize
        return self.before() + self.site + self.chosen() + self.latents() + self.heads() + index

    def scores(self) -> int:
        """Of as many rows as are scored at a time, and of a row that is cut two pieces."""
        c = self.c
        offered = c.candidate_block_size * c.candidate_topk_blocks
        width = max(self.shape.entries, offered)
        at_once = max(1, min(self.shape.rows, SCORE_BYTES // (FLOAT * width)))
        pieces = 2 * LONGEST_CHOICE if width > LONGEST_CHOICE else 0
        return at_once * FLOAT * (width + pieces)
