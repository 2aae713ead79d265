"""The kernels of a V4.1 step besides products, scans and experts: norms, quantisers, cache rows, streams, sampling."""

from collections.abc import Iterator

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.plan.cost.shape import Scope, SmallKernel

BF16, F32 = 2, 4
ON_GRID = 2 * BF16  # of a number that is read, and written on the FP8 grid


def small_kernels(config: V41Config, cache: CacheLayout, num_draft_layers: int) -> Iterator[SmallKernel]:
    """Alike ones of several layers as one, row bytes as the timings of these kernels count them."""
    boundary = min(config.boundary, config.num_hidden_layers)
    halves: dict[Scope, range] = {"row": range(boundary), "kept": range(boundary, config.num_hidden_layers)}
    for scope, layers in halves.items():
        yield from _every_layer(config, cache, scope, len(layers), ("attn_proj", "attention", "shared", "mhc"))
        yield from _entries(config, cache, [layer for layer in layers if layer in config.kv_source_layer_ids])
        if count := sum(layer in config.engram_layer_ids for layer in layers):
            yield from _engram(config, scope, count)
    if num_draft_layers:
        yield from _every_layer(config, cache, "draft", num_draft_layers, ("draft",) * 4)
        yield SmallKernel(part="draft", op="accepted_lengths", row_bytes=2.0 * F32, scope="sampled")
    yield SmallKernel(part="head", op="norm_quantise", row_bytes=float(config.hidden_size * ON_GRID), scope="sampled")
    yield SmallKernel(part="head", op="sample_rows", row_bytes=float(config.vocab_size * F32), scope="sampled")


def _every_layer(
    c: V41Config, cache: CacheLayout, scope: Scope, layers: int, parts: tuple[str, str, str, str]
) -> Iterator[SmallKernel]:
    """Attention's latents, window row and output; the shared expert's middle; the borders of both sites."""
    if not layers:
        return
    projections, attention, shared, streams = parts
    window = c.head_dim * BF16 + c.qk_rope_head_dim * F32 + F32 + cache.window_entry_bytes
    border = 2 * (2 * c.hc_mult + 3) * c.hidden_size * BF16  # streams in and out, row in and out, of two sites
    weights = 2 * c.hc_mult * (2 + c.hc_mult) * c.hc_mult * c.hidden_size * F32
    for part, op, row_bytes, held in (
        (projections, "norm_quantise", c.q_lora_rank * ON_GRID, 0),
        (attention, "norm_rope_store_window", window, 0),
        (projections, "quantise", c.o_groups * c.o_lora_rank * ON_GRID, 0),
        (shared, "swiglu_quantise", 3 * c.moe_intermediate_size * BF16, 0),
        (streams, "hyper_border", border, weights),
    ):
        yield SmallKernel(
            part=part, op=op, row_bytes=float(row_bytes), layers=layers, scope=scope, held_bytes=float(held)
        )


def _entries(c: V41Config, cache: CacheLayout, sources: list[int]) -> Iterator[SmallKernel]:
    """Main and index keys of the entries that a step completes; the first source's of all rows."""
    for layer in sources:
        scope: Scope = "row" if layer <= c.boundary else "kept"
        ratio = c.ratio(layer)
        rope = c.qk_rope_head_dim * F32
        halves = c.head_dim * (2 if ratio == 2 else 1) * BF16
        main = halves + (rope + F32 * (1 + ratio) + cache.main_entry_bytes + c.head_dim * BF16) / ratio
        index = (c.index_head_dim * BF16 + rope + F32 + cache.index_entry_bytes) / ratio
        yield SmallKernel(part="compressor", op="compress_store", row_bytes=float(main), scope=scope)
        yield SmallKernel(part="compressor", op="index_store", row_bytes=float(index), scope=scope)


def _engram(c: V41Config, scope: Scope, layers: int) -> Iterator[SmallKernel]:
    slots = (c.engram_max_ngram_size - 1) * c.engram_n_heads
    gathered = slots * (c.engram_head_dim * (1 + BF16) + c.engram_head_dim // 32 + 2 * F32)
    added = (3 * c.hc_mult + 1) * c.hidden_size * BF16
    for op, row_bytes in (
        ("engram_gather", gathered),
        ("quantise", slots * c.engram_head_dim * ON_GRID),
        ("engram_add", added),
    ):
        yield SmallKernel(part="engram", op=op, row_bytes=float(row_bytes), layers=layers, scope=scope)
