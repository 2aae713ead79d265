"""What a model does to one row of a step, as plain data: products with weights, scans of keys, experts, moved rows.

A shape can be written by hand. `msgspec.convert(yaml.safe_load(text), Shape)` reads the format below, so models that
deepinfer does not run can still be reckoned with:

    name: toy
    layers: 61                     # for costs that each layer has once
    cache_token_bytes: 890         # cache that a token adds, and
    cache_sequence_bytes: 3128928  # cache that a sequence has whatever its length: both travel from prefill to decode
    products:                      # matrix products, alike ones together
      - {part: attn_proj, dtype: f8_e4m3, inputs: 5120, outputs: 1792, layers: 40, weight_bytes: 1.001}
    scans:                         # every (query, key) pair costs `flops`; a query sees
      - {part: attention, dtype: bf16, flops: 131072, key_bytes: 528, layers: 40, window: 128}    # the last 128 keys
      - {part: attention, dtype: bf16, flops: 131072, key_bytes: 288, layers: 18, ratio: 2, limit: 512}
    experts:                       # routed experts; shared ones are products
      - {layers: 40, experts: 384, chosen: 6, dtype: f8_e4m3, weights: 35389440, num_bytes: 18800640,
         dispatch_bytes: 5280, combine_bytes: 10240}
    traffic:                       # bytes that a row moves besides
      - {kind: gather, part: embed, num_bytes: 10240}

`scope` says how often something happens: for every "row"; for rows that replay=compact "kept" (all of them at decode);
for every "sampled" row (one a prompt, all at decode); for every slot that a "draft" fills; for every "accepted" row.
"""

from typing import Literal

from deepinfer.plan.frozen import Frozen

Scope = Literal["row", "kept", "sampled", "draft", "accepted"]


class Product(Frozen, frozen=True, kw_only=True):
    """`layers` equal matrix products; `weight_bytes` of one weight with its share of the scales, 0 for none."""

    part: str
    dtype: str  # in which it is multiplied: a key of a chip's peak_flops_by_dtype
    inputs: int
    outputs: int
    layers: int = 1
    weight_bytes: float = 2.0
    scope: Scope = "row"
    per_row: float = 1.0  # ½ where two tokens make one entry
    op: str = ""  # the kernel that does it; empty: it is part of another's launch
    reads: int = (
        0  # columns of a row that it takes where that is not `inputs`: several groups, each with its own weights
    )

    @property
    def weights(self) -> int:
        """Weights of all layers together."""
        return self.inputs * self.outputs * self.layers

    @property
    def flops(self) -> float:
        """FLOPs of a row, two to a weight."""
        return 2.0 * self.weights * self.per_row


class KeyScan(Frozen, frozen=True, kw_only=True):
    """Queries against cached keys: of the last `window` tokens, and of entries that each stand for `ratio` tokens.

    The query at 0-based position p sees min(p + 1, window) + min(⌊(p + 1) / ratio⌋, limit) keys.
    """

    part: str
    dtype: str
    flops: float  # of one query and one key in one layer
    key_bytes: float  # of one key in one layer
    layers: int = 1
    window: int | None = 0  # null: all tokens
    ratio: int = 0  # 0: no entries
    limit: int | None = None  # most entries a query sees; null: all
    scope: Scope = "row"
    offers: int = 0  # of its layers that choose candidates for later ones

    def keys(self, context: int) -> int:
        """Keys that a query in a context of `context` tokens, itself included, sees in one layer."""
        window = context if self.window is None else min(context, self.window)
        entries = context // self.ratio if self.ratio else 0
        return window + (entries if self.limit is None else min(entries, self.limit))

    def keys_between(self, start: int, stop: int) -> int:
        """Keys of all queries at positions start … stop − 1 together, in one layer."""
        return self._keys_below(stop) - self._keys_below(start)

    def _keys_below(self, stop: int) -> int:
        window = stop if self.window is None else self.window
        total = _sum_of_floors(stop, 1, window)
        return total + (_sum_of_floors(stop, self.ratio, self.limit) if self.ratio else 0)

    def distinct(self, queries: int, context: int) -> int:
        """Keys that `queries` neighbouring queries of one sequence read at most, in one layer."""
        every = context // self.ratio if self.ratio else 0
        entries = every if self.limit is None else min(every, self.limit * queries)
        window = context if self.window is None else min(context, self.window + queries - 1 if self.window else 0)
        return window + entries


def _sum_of_floors(stop: int, ratio: int, limit: int | None) -> int:
    """Σ over n = 1 … stop of min(⌊n / ratio⌋, limit)."""
    below = stop if limit is None else min(stop, limit * ratio - 1 if limit else 0)
    whole = below // ratio
    total = ratio * whole * (whole - 1) // 2 + whole * (below - ratio * whole + 1)
    return total + (0 if limit is None else limit * (stop - below))


class Experts(Frozen, frozen=True, kw_only=True):
    """Routed experts of `layers` equal layers. Bytes of a row: sent once to each rank that has a chosen expert."""

    part: str = "experts"
    layers: int
    experts: int
    chosen: int
    dtype: str
    weights: int  # of one expert
    num_bytes: int  # of one expert
    dispatch_bytes: int  # of a row on its way to a rank: values and scales
    combine_bytes: int  # of a row on its way back
    scope: Scope = "row"


class RowTraffic(Frozen, frozen=True, kw_only=True):
    """Bytes that a row moves in all layers together, besides weights and keys.

    "gather" is read from tables of the device's own memory, "engram" from wherever those tables live, "write" goes to
    the cache, "share" is what ranks of one context group tell each other, "stream" passes between layers.
    """

    kind: Literal["gather", "engram", "write", "share", "stream"]
    part: str
    num_bytes: float
    scope: Scope = "row"


class SmallKernel(Frozen, frozen=True, kw_only=True):
    """A kernel between products, launched once in each of `layers`; its bytes count where single kernels are reckoned with."""

    part: str
    op: str
    row_bytes: float  # that a row moves in one launch
    layers: int = 1
    scope: Scope = "row"
    held_bytes: float = 0.0  # that a launch reads besides


class Shape(Frozen, frozen=True, kw_only=True):
    """A model as a cost model sees it."""

    name: str
    layers: int
    products: tuple[Product, ...]
    scans: tuple[KeyScan, ...] = ()
    experts: tuple[Experts, ...] = ()
    traffic: tuple[RowTraffic, ...] = ()
    small: tuple[SmallKernel, ...] = ()
    cache_token_bytes: float = 0.0
    cache_sequence_bytes: float = 0.0
