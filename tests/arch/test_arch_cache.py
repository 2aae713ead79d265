"""Cache bytes: they follow head_dim and the choice of number formats."""

from typing import Any

import pytest

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import parse_config


def test_packed_entries_follow_head_dim(tiny_a: dict[str, Any]) -> None:
    layout = CacheLayout.of(parse_config(tiny_a))
    assert (layout.main_entry_bytes, layout.index_entry_bytes, layout.window_entry_bytes) == (36, 17, 66)
    assert layout.growing_bytes_per_token == (36 + 17) / 2 * 2 + (36 + 17)


def test_sources_tile_the_block_without_gaps(tiny_a: dict[str, Any]) -> None:
    layout = CacheLayout.of(parse_config(tiny_a), block_tokens=64)
    offset = 0
    for source in layout.sources:
        assert source.main_offset == offset
        assert source.index_offset == offset + source.entries * layout.main_entry_bytes
        offset = source.index_offset + source.entries * layout.index_entry_bytes
    assert offset == layout.block_bytes <= layout.padded_block_bytes


def test_plain_rows_have_the_models_dtype(tiny_a: dict[str, Any]) -> None:
    layout = CacheLayout.of(parse_config(tiny_a), numerics="none", dtype="float64")
    assert layout.window_entry_bytes == 64 * 8
    assert layout.main_entry_bytes == 64 * 8


def test_backtrack_lengthens_rings_and_tails(tiny_a: dict[str, Any]) -> None:
    config = parse_config(tiny_a)
    plain, deep = CacheLayout.of(config), CacheLayout.of(config, num_draft_layers=2, backtrack=6)
    assert (plain.ring_slots, deep.ring_slots) == (16, 22)
    assert (plain.tail_slots, deep.tail_slots) == (2, 7)
    assert deep.num_window_layers == plain.num_window_layers + 2


@pytest.mark.parametrize("block_tokens", [0, -2, 7])
def test_odd_blocks_are_refused(tiny_a: dict[str, Any], block_tokens: int) -> None:
    with pytest.raises(ValueError, match="even"):
        CacheLayout.of(parse_config(tiny_a), block_tokens=block_tokens)
