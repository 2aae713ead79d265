"""Where a sequence begins and what exists for it, as arithmetic."""

import pytest

from deepinfer.cache.replay import Floors, Replay


def replay(keep_tokens: int = 0, on_hit: str = "snapshot") -> Replay:
    return Replay(keep_tokens=keep_tokens, on_hit=on_hit, sliding_window=128, num_layers=40, boundary=20)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_hit", ["snapshot", "exact", "bounded"])
def test_a_cold_sequence_begins_at_zero(on_hit: str) -> None:
    assert replay(0, on_hit).floors(1000) == Floors(0, 0, 0, 0)
    assert replay(140, on_hit).floors(1000) == Floors(0, 0, 860, 0)
    assert replay(140, on_hit).floors(100) == Floors(0, 0, 0, 0)


def test_hits_end_before_the_last_token_and_before_the_kept_ones() -> None:
    assert [replay().longest_hit(n) for n in (0, 1, 128, 129)] == [0, 0, 127, 128]
    assert [replay(140).longest_hit(n) for n in (100, 140, 300)] == [0, 0, 160]
    with pytest.raises(AssertionError, match="kept row"):
        replay(140).floors(300, 256)


@pytest.mark.parametrize(
    ("keep", "on_hit", "cached", "wanted"),
    [
        (0, "snapshot", 8960, Floors(8960, 0, 0, 8960)),
        (140, "snapshot", 8960, Floors(8960, 0, 9860, 8960)),
        (0, "exact", 8960, Floors(8960 - 127 * 40, 8960 - 127 * 40, 8960 - 127 * 40, 8960)),
        (140, "exact", 8960, Floors(8960 - 127 * 20, 8960 - 127 * 20, 9860, 8960)),
        (0, "bounded", 8960, Floors(8832, 8832, 8832, 8960, approximate=True)),
        (140, "bounded", 8960, Floors(8832, 8832, 9860, 8960, approximate=True)),
        (0, "exact", 1280, Floors(0, 0, 0, 1280)),
        (0, "bounded", 128, Floors(0, 0, 0, 128)),
    ],
)
def test_after_a_hit(keep: int, on_hit: str, cached: int, wanted: Floors) -> None:
    assert replay(keep, on_hit).floors(10_000, cached) == wanted
