"""Small launches between a model's products: places of cache rows, n-gram hashes, means of streams. All exactly the twins'."""

import pytest
import torch
from deepinfer.kernels.triton_entry_rows import entry_rows
from deepinfer.kernels.triton_ngram_rows import ngram_rows
from deepinfer.kernels.triton_stream_mean import stream_mean
from deepinfer.kernels.triton_write_tails import write_tails
from row_cases import DEVICES

from deepinfer.ops import engram, stored_places
from deepinfer.ops import stream_mean as means


def numbers(low: int, high: int, shape: tuple[int, ...], device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "entries", "per_block"), [(5, 512, 64), (3, 640, 128), (2, 7, 16), (0, 4, 16)])
def test_entries_become_row_numbers(rows: int, entries: int, per_block: int, device: str) -> None:
    tables = numbers(0, 1000, (4, 9), device, 1)
    chosen, sequence = numbers(-1, 9 * per_block, (rows, entries), device), numbers(0, 4, (rows,), device, 2)
    chosen[:, entries // 2 :: 3] = -1
    wanted = stored_places.entry_rows(chosen, tables, sequence, per_block)
    assert torch.equal(entry_rows(chosen, tables, sequence, per_block), wanted)
    assert not rows or ((wanted == -1) == (chosen == -1)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "dtype"), [(1024, torch.float32), (1500, torch.float32), (1024, torch.bfloat16)])
def test_tails_are_written_where_they_belong(width: int, dtype: torch.dtype, device: str) -> None:
    """Two rows leave the same in one place, as padded rows do; everything else stays."""
    raw = torch.randn(9, width + 32, generator=torch.Generator().manual_seed(3)).to(device, dtype)
    raw[8] = raw[7]
    pool = torch.full((4, 3, 2 * width), torch.nan, device=device)
    tails = [pool.clone().view(4, -1)[:, : 5 * width].unflatten(1, (5, width)) for _ in range(2)]
    rows = torch.tensor([3, 0, 7, 8], dtype=torch.int32, device=device)
    places = torch.tensor([2, 14, 19, 19], dtype=torch.int32, device=device)
    for write, tail in zip((write_tails, stored_places.write_tails), tails):
        write(tail, raw, rows, places)
    assert torch.equal(tails[0].nan_to_num(7.25), tails[1].nan_to_num(7.25))
    assert int(tails[0].isfinite().all(-1).sum()) == 3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "ngram", "heads"), [(70, 4, 8), (3, 3, 1), (1, 4, 5)])
def test_ngrams_hash_as_published(rows: int, ngram: int, heads: int, device: str) -> None:
    """Products beyond 63 bits wrap around, and remainders of negative numbers are positive."""
    ids = numbers(-1, 500, (rows, ngram), device)
    generator = torch.Generator().manual_seed(4)
    classes = torch.randint(0, 1 << 20, (500,), generator=generator).to(device)
    multipliers = (torch.randint(0, 1 << 61, (ngram,), generator=generator) * 2 + 1).to(device)
    primes = torch.randint(3, 1 << 24, (ngram - 1, heads), generator=generator).to(device)
    offsets = torch.randint(0, 1 << 30, (ngram - 1, heads), generator=generator).to(device)
    tables = classes, 77, multipliers, primes, offsets
    wanted = engram.ngram_rows(ids, *tables)
    assert torch.equal(ngram_rows(ids, *tables), wanted)
    assert (wanted >= offsets.flatten()).all() and (wanted < (offsets + primes).flatten()).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "width"), [(4, 1024), (3, 5120), (2, 96)])
def test_means_of_streams_are_the_twins_bits(rows: int, width: int, device: str) -> None:
    x = torch.randn(rows, 4, width, generator=torch.Generator().manual_seed(5)).to(device, torch.bfloat16)
    out = [torch.full((rows, 3 * width), 5.0, dtype=torch.bfloat16, device=device) for _ in range(2)]
    for mean, filled in zip((stream_mean, means.stream_mean), out):
        mean(x, filled[:, width : 2 * width])
    assert torch.equal(*out) and (out[0][:, :width] == 5).all() and (out[0][:, 2 * width :] == 5).all()
