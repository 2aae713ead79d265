"""Kernels of cache rows at other widths than the release's: stored keys, expanded rows, norms, attention."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from deepinfer.kernels.general_sparse_attention import sparse_attention
from deepinfer.kernels.triton_compress_store import compress_store
from deepinfer.kernels.triton_expand_rows import expand_rows
from deepinfer.kernels.triton_index_store import index_store
from deepinfer.kernels.triton_norm_quantise import norm_quantise
from deepinfer.kernels.triton_store_window import norm_rope_store_window
from row_cases import (
    DEVICES,
    EPS,
    assert_same_rows,
    bits,
    empty_store,
    pool_of,
    random_rope,
    random_rows,
    relative_error,
    row_numbers,
)
from row_cases import share_of_different as different
from sparse_attention_cases import Case, check, expected, problem, rows_of
from torch import Tensor

from deepinfer.ops import norm_quantise as norm_twin
from deepinfer.ops import numbered_rows, stored_keys

ROW_BYTES: dict[str, Callable[[int], int]] = {
    "window": lambda width: width + width // 32,
    "main": lambda width: width // 2 + width // 16,
    "index": lambda width: width // 2 + width // 32,
}
BLOCK = 21  # rows; blocks begin where rows of these widths may, not at 16 bytes


def store(
    kind: str, op: Callable[..., Tensor | None], width: int, rows: int, device: str
) -> Callable[..., Tensor | None]:
    """`call(store, row numbers, chosen rows)` of an op on random keys; every fifth pair of `main` began in the tails."""
    rope = random_rope(7, rows, width // 8, device)
    weight = random_rows(6, width, device=device, wide=False)
    if kind != "main":
        keys = random_rows(5, rows, width + 64, device=device)[:, 64:]
        return lambda to, numbers, at=slice(None): op(keys[at], weight, EPS, rope[at].contiguous(), to, numbers)
    halves, tails = (
        random_rows(8, rows * 2 + 3, 2 * width + 8, device=device),
        random_rows(9, 4, 7, 2 * width, device=device).float(),
    )
    newest = torch.arange(rows, dtype=torch.int32, device=device) * 2 + 1
    partner = torch.where(newest % 10 == 1, -1 - newest % 28, newest - 1)

    def call(to: Tensor, numbers: Tensor, at: Tensor | slice = slice(None)) -> Tensor | None:
        pairs = {"partner_E": partner[at].contiguous(), "tail_ASX": tails}
        return op(halves, newest[at].contiguous(), weight, EPS, rope[at].contiguous(), to, numbers, **pairs)

    return call


OPS = {
    "window": (norm_rope_store_window, stored_keys.norm_rope_store_window),
    "main": (compress_store, stored_keys.compress_store),
    "index": (index_store, stored_keys.index_store),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "kind, width", [("window", 64), ("window", 128), ("main", 64), ("main", 32), ("index", 32), ("index", 64)]
)
def test_stored_keys_and_what_is_read_back(kind: str, width: int, device: str) -> None:
    rows, row_bytes = 13 if device == "cpu" else 100, ROW_BYTES[kind](width)
    found, wanted = (empty_store(5, BLOCK, row_bytes, device, offset_bytes=row_bytes) for _ in range(2))
    numbers = row_numbers(3, rows, 5 * BLOCK, device)
    for op, to in zip(OPS[kind], (found, wanted)):
        store(kind, op, width, rows, device)(to, numbers)
    assert different(pool_of(found), pool_of(wanted)) < 2e-3
    kept = numbers[numbers >= 0]
    values = [numbered_rows.expand_rows(kind, to, kept, torch.float64) for to in (found, wanted)]
    assert relative_error(*values) < 0.01
    assert torch.equal(bits(expand_rows(kind, found, numbers)), bits(numbered_rows.expand_rows(kind, found, numbers)))
    found[kept.long() // BLOCK, kept.long() % BLOCK] = 0xFF
    assert (pool_of(found) == 0xFF).all(), "nothing beside the rows was touched"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", tuple(OPS))
def test_stored_rows_are_invariant(kind: str, device: str) -> None:
    rows = 7 if device == "cpu" else 256
    call = store(kind, OPS[kind][0], 64, rows, device)

    def stored(chosen: Tensor) -> tuple[Tensor]:
        to = empty_store(1, rows, ROW_BYTES[kind](64), device)
        call(to, torch.arange(len(chosen), dtype=torch.int32, device=device), chosen)
        return (to[0, : len(chosen)],)

    assert_same_rows(stored, rows, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [64, 96, 256, 2304])
def test_norms_of_other_widths(width: int, device: str) -> None:
    rows = 3 if device == "cpu" else 131
    x, weight = random_rows(1, rows, width, device=device), random_rows(2, width, device=device, wide=False)
    found = norm_quantise(x, weight, EPS, normed=True)
    wanted = norm_twin.norm_quantise(x.double(), weight.double(), EPS, normed=True)
    assert relative_error(found.normed_TD, wanted.normed_TD) < 2.5e-3
    assert torch.equal(found.grid_TD, norm_twin.quantise(found.normed_TD).grid_TD)
    assert_same_rows(lambda at: norm_quantise(x[at], weight, EPS, normed=True)[:2], rows, device)


ATTENTION = {
    "four wide heads": Case(2, 2, heads=4, head_dim=512, selected=128, entries=256, visible=(128, 3)),
    "narrow heads, short lists": Case(
        2, 3, heads=8, head_dim=64, window=16, selected=16, entries=64, visible=(16, 5, 0)
    ),
    "six heads, odd lists": Case(1, 2, heads=6, head_dim=64, window=40, selected=24, entries=64, hidden=0.3),
    "window alone": Case(2, 1, heads=4, head_dim=64, window=16, selected_kind=None),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, device: str) -> None:
    arguments = problem(ATTENTION[name], device)
    out = sparse_attention(**arguments)
    check(out, expected(arguments), *([1.5e-2] if device == "cpu" else []))  # the interpreter rounds to bf16 by cutting


@pytest.mark.gpu
def test_attention_rows_are_invariant() -> None:
    arguments = problem(Case(60, 5, heads=4, selected=128, visible=(128, 20, 64), hidden=0.1, entries=512), "cuda")
    arguments["q_THK"][7], arguments["q_THK"][9] = torch.nan, torch.inf
    run = partial(rows_of, arguments)
    assert_same_rows(lambda rows: (sparse_attention(**run(rows)),), 300, "cuda")
