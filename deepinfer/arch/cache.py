"""Bytes of every cache a sequence needs, and how they lie in memory.

Two kinds. *Paged* caches grow with the sequence: per KV source one compressed key and one index key per `ratio` tokens, all
sources of one block of tokens side by side. *State* is fixed per sequence: a ring of window keys for every layer, and for
every ratio-2 source a short ring of keys and gates whose partner token has not come yet.
"""

import math
from typing import Literal

import msgspec

from deepinfer.arch.config import V41Config

Numerics = Literal["full", "kv", "none"]
DTYPE_ITEMSIZE = {"bfloat16": 2, "float32": 4, "float64": 8}
BLOCK_ALIGN = math.lcm(128, 288)  # bytes; a block begins on a border of both a cache line pair and a main entry
STATE_ALIGN = 32  # bytes; the state of a sequence is padded to a multiple of this and of a window entry

TAIL_ITEMSIZE = 4  # compressor tails are float32, or float64 when the model computes in it


class SourceLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One KV source inside a block: `entries` per block, main keys first, index keys after them. Offsets in bytes."""

    layer: int
    ratio: int
    entries: int
    main_offset: int
    index_offset: int


class CacheLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Entry sizes and offsets in bytes; see `of`."""

    numerics: Numerics
    dtype: str
    block_tokens: int
    main_entry_bytes: int
    index_entry_bytes: int
    window_entry_bytes: int
    sources: tuple[SourceLayout, ...]
    block_bytes: int
    padded_block_bytes: int
    num_window_layers: int
    ring_slots: int
    tail_slots: int
    tail_sources: tuple[int, ...]
    tail_bytes: int
    growing_bytes_per_token: float
    state_bytes: int
    padded_state_bytes: int

    @staticmethod
    def of(
        config: V41Config,
        *,
        numerics: Numerics = "full",
        dtype: str = "float32",
        block_tokens: int = 128,
        num_draft_layers: int = 0,
        backtrack: int = 0,
    ) -> "CacheLayout":
        """The layout for one model and one choice of number formats.

        `backtrack` is how many newest tokens a rejected draft may take back: rings and tails are longer by that much.
        With numerics "none" rows are stored in `dtype`; otherwise in the release's packed FP8 and FP4 formats.
        """
        if block_tokens <= 0 or block_tokens % 2:
            raise ValueError(f"block_tokens={block_tokens} must be a positive even number: ratio-2 sources pair tokens")
        itemsize = DTYPE_ITEMSIZE[dtype]
        packed = numerics != "none"
        head, index = config.head_dim, config.index_head_dim
        main_bytes = head // 2 + head // 16 if packed else head * itemsize
        index_bytes = index // 2 + index // 32 if packed else index * itemsize
        window_bytes = head + head // 32 if packed else head * itemsize
        sources, offset = [], 0
        for layer in config.kv_source_layer_ids:
            entries = block_tokens // config.ratio(layer)
            index_offset = offset + entries * main_bytes
            sources.append(
                SourceLayout(
                    layer=layer,
                    ratio=config.ratio(layer),
                    entries=entries,
                    main_offset=offset,
                    index_offset=index_offset,
                )
            )
            offset = index_offset + entries * index_bytes
        tail_sources = tuple(layer for layer in config.kv_source_layer_ids if config.ratio(layer) == 2)
        tail_slots = 2 + max(0, backtrack - 1)
        tail_bytes = tail_slots * 2 * head * (8 if dtype == "float64" else TAIL_ITEMSIZE)
        ring_slots = config.sliding_window + backtrack
        num_window_layers = config.num_hidden_layers + num_draft_layers
        state_bytes = num_window_layers * ring_slots * window_bytes + len(tail_sources) * tail_bytes
        return CacheLayout(
            numerics=numerics,
            dtype=dtype,
            block_tokens=block_tokens,
            main_entry_bytes=main_bytes,
            index_entry_bytes=index_bytes,
            window_entry_bytes=window_bytes,
            sources=tuple(sources),
            block_bytes=offset,
            padded_block_bytes=_round_up(offset, BLOCK_ALIGN),
            num_window_layers=num_window_layers,
            ring_slots=ring_slots,
            tail_slots=tail_slots,
            tail_sources=tail_sources,
            tail_bytes=tail_bytes,
            growing_bytes_per_token=offset / block_tokens,
            state_bytes=state_bytes,
            padded_state_bytes=_round_up(state_bytes, math.lcm(STATE_ALIGN, window_bytes)),
        )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
