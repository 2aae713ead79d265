"""The shape of a V4.1 model, from its config.json. Sources: the released config.json, tensor headers and model code."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import TypeVar

from msgspec import structs

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.plan.cost.shape import Experts, KeyScan, Product, RowTraffic, Scope, Shape
from deepinfer.plan.cost.v41_kernels import small_kernels

FP8_BYTES = 1 + 1 / 1024  # a weight with its share of the scale of a 32 × 32 block
FP4_BYTES = 0.5 + 1 / 32
BF16_BYTES, F32_BYTES = 2.0, 4.0
KERNELS = {
    "f8_e4m3": "fp8_linear",
    "bf16": "bf16_linear",
}  # of products; sites of the residual streams have a kernel of their own
Item = TypeVar("Item", Product, KeyScan, Experts)


@lru_cache(maxsize=32)
def shape_of(config: V41Config, cache: CacheLayout, *, num_draft_layers: int = 0) -> Shape:
    """The shape of `config` with keys as `cache` stores them; with draft layers also what drafting takes."""
    layers = range(config.num_hidden_layers)
    products = [product for layer in layers for product in _layer(config, layer)]
    scans = [scan for layer in layers for scan in _scans(config, cache, layer)]
    experts = [_experts(config, _half(config, layer)) for layer in layers]
    products.append(_product("head", "bf16", config.hidden_size, config.vocab_size, "sampled"))
    if num_draft_layers:
        products += _draft(config, num_draft_layers)
        scans += [_window(config, cache, "draft")] * num_draft_layers
        experts += [_experts(config, "draft")] * num_draft_layers
    return Shape(
        name="v41",
        layers=config.num_hidden_layers,
        products=_together(products),
        scans=_together(scans),
        experts=_together(experts),
        traffic=tuple(_traffic(config, cache)),
        small=tuple(small_kernels(config, cache, num_draft_layers)),
        cache_token_bytes=cache.growing_bytes_per_token,
        cache_sequence_bytes=cache.state_bytes,
    )


def _together(items: list[Item]) -> tuple[Item, ...]:
    """Equal items of one layer each as one, in the order of their first."""
    return tuple(structs.replace(item, layers=count) for item, count in Counter(items).items())


def _half(config: V41Config, layer: int) -> Scope:
    """Layers from the boundary on see the kept rows of a prompt only."""
    return "row" if layer < config.boundary else "kept"


def _product(
    part: str,
    dtype: str,
    inputs: int,
    outputs: int,
    scope: Scope,
    *,
    per_row: float = 1.0,
    op: str | None = None,
    reads: int = 0,
) -> Product:
    return Product(
        part=part,
        dtype=dtype,
        inputs=inputs,
        outputs=outputs,
        weight_bytes={"f8_e4m3": FP8_BYTES, "bf16": BF16_BYTES, "tf32": F32_BYTES}[dtype],
        scope=scope,
        per_row=per_row,
        op=KERNELS.get(dtype, "") if op is None else op,
        reads=reads,
    )


def _layer(c: V41Config, layer: int) -> Iterator[Product]:
    scope = _half(c, layer)
    yield from _block(c, scope, c.n_routed_experts, draft=False)
    if layer in c.kv_source_layer_ids:
        every: Scope = "row" if layer <= c.boundary else "kept"  # the first source keeps entries of all rows
        ratio = c.ratio(layer)
        yield _product("compressor", "bf16", c.hidden_size, c.head_dim * (2 if ratio == 2 else 1), every)
        yield _product("compressor", "bf16", c.head_dim, c.index_head_dim, every, per_row=1 / ratio)
    if layer in c.index_source_layer_ids:
        yield _product("index", "f8_e4m3", c.q_lora_rank, c.index_n_heads * c.index_head_dim, scope)
        joined = "" if layer in c.kv_source_layer_ids else None  # there part of the compressor's product
        yield _product("index", "bf16", c.hidden_size, c.index_n_heads, scope, op=joined)
    if layer in c.engram_layer_ids:
        features = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        yield _product("engram", "f8_e4m3", features, c.hidden_size * (c.hc_mult + 1), scope)


def _block(c: V41Config, scope: Scope, num_experts: int, *, draft: bool) -> Iterator[Product]:
    """What every layer has: attention projections, router, shared expert, two sites of the residual streams."""
    projections, ffn, streams = ("draft",) * 3 if draft else ("attn_proj", "shared", "mhc")
    yield _product(projections, "f8_e4m3", c.hidden_size, c.q_lora_rank + c.head_dim, scope)
    yield _product(projections, "f8_e4m3", c.q_lora_rank, c.num_attention_heads * c.head_dim, scope)
    low_rank = c.o_groups * c.o_lora_rank
    groups = c.heads_per_group * c.head_dim
    yield _product(projections, "f8_e4m3", groups, low_rank, scope, op="fp8_grouped_linear", reads=groups * c.o_groups)
    yield _product(projections, "f8_e4m3", low_rank, c.hidden_size, scope)
    yield _product("draft" if draft else "router", "bf16", c.hidden_size, num_experts, scope)
    yield _product(ffn, "f8_e4m3", c.hidden_size, 2 * c.moe_intermediate_size, scope)
    yield _product(ffn, "f8_e4m3", c.moe_intermediate_size, c.hidden_size, scope)
    for _ in ("attention", "ffn"):
        yield _product(streams, "tf32", c.hc_mult * c.hidden_size, c.hc_mult * (2 + c.hc_mult), scope)
        # the norm of all streams, their mix and their collapse have no weights
        mix = c.hc_mult + c.hc_mult * (c.hc_mult + 1)
        yield Product(part=streams, dtype="tf32", inputs=c.hidden_size, outputs=mix, weight_bytes=0.0, scope=scope)


def _draft(c: V41Config, num_layers: int) -> Iterator[Product]:
    """The drafter: its layers and head for every slot; for every accepted row the keys it will see."""
    for _ in range(num_layers):
        yield from _block(c, "draft", c.dspark_n_routed_experts, draft=True)
        yield _product("draft", "f8_e4m3", c.hidden_size, c.head_dim, "accepted")
    yield _product("draft", "f8_e4m3", c.hidden_size * len(c.dspark_target_layer_ids), c.hidden_size, "accepted")
    yield _product("draft_head", "bf16", c.hidden_size, c.vocab_size, "draft")
    yield _product("draft_head", "bf16", c.dspark_markov_rank, c.vocab_size, "draft", op="markov_step")


def _experts(c: V41Config, scope: Scope) -> Experts:
    """Routed experts hold FP4 weights and take FP8 rows: FP8 products. Rows travel as FP8 with a scale per 32."""
    weights, draft = 3 * c.hidden_size * c.moe_intermediate_size, scope == "draft"
    return Experts(
        part="draft_experts" if draft else "experts",
        layers=1,
        experts=c.dspark_n_routed_experts if draft else c.n_routed_experts,
        chosen=c.dspark_num_experts_per_tok if draft else c.num_experts_per_tok,
        dtype="f8_e4m3",
        weights=weights,
        num_bytes=int(weights * FP4_BYTES),
        dispatch_bytes=c.hidden_size + c.hidden_size // 32,
        combine_bytes=2 * c.hidden_size,
        scope=scope,
    )


def _attention_flops(c: V41Config) -> float:
    return 4.0 * c.num_attention_heads * c.head_dim  # key and value are one row: two products


def _window(c: V41Config, cache: CacheLayout, scope: Scope) -> KeyScan:
    return KeyScan(
        part="draft" if scope == "draft" else "attention",
        dtype="bf16",
        flops=_attention_flops(c),
        key_bytes=cache.window_entry_bytes,
        window=c.sliding_window,
        scope=scope,
    )


def _scans(c: V41Config, cache: CacheLayout, layer: int) -> Iterator[KeyScan]:
    scope, ratio = _half(c, layer), c.ratio(layer)
    yield _window(c, cache, scope)
    if ratio:
        yield KeyScan(
            part="attention",
            dtype="bf16",
            flops=_attention_flops(c),
            key_bytes=cache.main_entry_bytes,
            ratio=ratio,
            limit=c.index_topk,
            scope=scope,
        )
    if layer in c.index_source_layer_ids:
        narrowed = layer > c.candidate_source_layer_id  # later layers choose among that layer's candidates
        yield KeyScan(
            part="index",
            dtype="f4_e2m1",
            flops=2.0 * c.index_n_heads * c.index_head_dim,
            key_bytes=cache.index_entry_bytes,
            ratio=ratio,
            limit=c.candidate_topk_blocks * c.candidate_block_size if narrowed else None,
            scope=scope,
            offers=int(layer == c.candidate_source_layer_id),
        )


def _traffic(c: V41Config, cache: CacheLayout) -> Iterator[RowTraffic]:
    encoder = min(c.boundary, c.num_hidden_layers)
    layers: dict[Scope, int] = {"row": encoder, "kept": c.num_hidden_layers - encoder}
    yield RowTraffic(kind="gather", part="embed", num_bytes=BF16_BYTES * c.hidden_size)
    rows = len(c.engram_layer_ids) * (c.engram_max_ngram_size - 1) * c.engram_n_heads
    yield RowTraffic(kind="engram", part="engram", num_bytes=rows * (c.engram_head_dim + c.engram_head_dim // 32))
    yield RowTraffic(kind="write", part="compressor", num_bytes=cache.growing_bytes_per_token)
    yield RowTraffic(kind="share", part="compressor", num_bytes=cache.growing_bytes_per_token)
    streams = 2 * (2 * c.hc_mult + 3) * c.hidden_size * BF16_BYTES  # of both sites: streams in and out, row in and out
    for scope, count in layers.items():
        window = float(cache.window_entry_bytes * count)
        yield RowTraffic(kind="write", part="attention", num_bytes=window, scope=scope)
        yield RowTraffic(kind="share", part="attention", num_bytes=window, scope=scope)
        yield RowTraffic(kind="stream", part="mhc", num_bytes=streams * count, scope=scope)


def widened(shape: Shape, dtype: str, item_bytes: int, *, dense: bool, experts: bool, engram: bool) -> Shape:
    """The shape where classes of weights are held and multiplied in `dtype`, as plain torch does."""
    products, routed, traffic = shape.products, shape.experts, shape.traffic
    if dense:
        products = tuple(_wider(product, dtype, item_bytes) for product in products)
    if experts:
        routed = tuple(structs.replace(e, dtype=dtype, num_bytes=e.weights * item_bytes) for e in routed)
    if engram:
        ratio = item_bytes / (1 + 1 / 32)
        traffic = tuple(structs.replace(t, num_bytes=t.num_bytes * ratio) if t.kind == "engram" else t for t in traffic)
    scans = tuple(structs.replace(scan, dtype=dtype) for scan in shape.scans) if dense else shape.scans
    return structs.replace(shape, products=products, experts=routed, traffic=traffic, scans=scans)


def _wider(product: Product, dtype: str, item_bytes: int) -> Product:
    held = max(item_bytes, 4) if product.dtype == "tf32" else item_bytes  # F32 weights are never narrowed
    used = product.dtype if product.dtype == "tf32" and dtype == "bf16" else dtype
    return structs.replace(product, dtype=used, weight_bytes=held if product.weight_bytes else 0.0)
