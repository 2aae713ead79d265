"""Every compiled loop gives its torch twin's bits, on plain and on awkward numbers."""

import pytest
import torch
from op_cases import ROWS, Inputs, cases
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import native, reference

NAMES = sorted(cases(Inputs(torch.float32)))
KINDS = {"window": 64 + 2, "main": 32 + 4, "index": 32 + 2, "plain": 64}


def awkward(rows: int = 64, width: int = 64) -> Tensor:
    """Magnitudes from 1e-38 to 1e38, ties of every format, zeros of both signs, and groups with NaN and infinity."""
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(1))
    x *= 10.0 ** torch.linspace(-38, 38, rows).unsqueeze(1)
    x[0], x[1] = 0.0, -0.0
    x[2] = torch.arange(width) / 8 * 448 / 7  # exact ties of E4M3
    x[3] = torch.arange(width) % 25 / 4 * 2.0**5
    x[4] = torch.arange(width) % 25 / -4
    x[5, 3], x[6, 40], x[7, 0] = torch.nan, torch.inf, -torch.inf
    x[8], x[9] = 448.0, 6.0
    x[10] = torch.arange(width) * 2.0**-9 / 2
    return x


def assert_same(mine: Tensor, twin: Tensor) -> None:
    assert mine.dtype == twin.dtype and mine.shape == twin.shape
    both_nan = mine.isnan() & twin.isnan() if mine.is_floating_point() else torch.zeros_like(mine, dtype=torch.bool)
    assert ((mine == twin) | both_nan).all()


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_on_random_rows(name: str) -> None:
    run = cases(Inputs(torch.float32))[name]
    for rows in (slice(0, ROWS), slice(3, 4), slice(5, 18)):
        assert_same(run(native(), rows), run(reference(), rows))


@pytest.mark.parametrize("kind", list(KINDS))
def test_rows_are_written_and_read_alike(kind: str) -> None:
    x = awkward()
    outer, inner = torch.arange(64) % 8, torch.arange(64) // 8
    dtype = torch.float32 if kind == "plain" else torch.uint8
    stores = [torch.zeros(8, 10, KINDS[kind], dtype=dtype)[:, 1:9] for _ in range(2)]
    for ops, store in zip((native(), reference()), stores):
        ops.write_rows(kind, store, outer, inner, x)
    if kind != "plain":
        assert torch.equal(*stores)
    outer[5::7] = -1
    read = [ops.read_rows(kind, stores[0], outer, inner, torch.float32) for ops in (native(), reference())]
    assert_same(*read)
    assert (read[0][outer < 0] == 0).all()


def test_quantisers_agree_on_awkward_numbers() -> None:
    for name in ("quantise_activation", "quantise_index"):
        assert_same(getattr(native(), name)(awkward()), getattr(reference(), name)(awkward()))
    assert_same(native().quantise_activation(awkward()), formats.fake_fp8_rows(awkward()))


@pytest.mark.parametrize("kind", ["index", "plain"])
def test_index_scores_agree_over_mixed_rows_and_many_tiles(kind: str) -> None:
    """Three sequences: one decode row, a chunk of seven, another decode row that sees nothing yet."""
    entries, width = 16, 32
    keys = torch.randn(60, entries, width, generator=torch.Generator().manual_seed(2))
    store = keys if kind == "plain" else formats.pack_index(keys)
    tables = torch.randperm(60, generator=torch.Generator().manual_seed(3)).view(3, 20)
    sequence = torch.tensor([0] + [1] * 7 + [2])
    visible = torch.tensor([300, 129, 130, 131, 132, 133, 134, 135, 0])
    q = formats.fake_index(torch.randn(9, 4, width, generator=torch.Generator().manual_seed(4)))
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(5))
    found = [ops.index_scores(q, weight, kind, store, tables, sequence, visible) for ops in (native(), reference())]
    assert_same(*found)
    for count in (1, 16, 128, 400):
        assert_same(native().best_entries(found[0], count), reference().best_entries(found[0], count))
        blocks = [ops.candidate_blocks(found[0], visible, 8, count) for ops in (native(), reference())]
        assert_same(*blocks)
        kept = [ops.keep_candidates(found[0], blocks[0], 8) for ops in (native(), reference())]
        assert_same(*kept)
