"""Kernels that norm, rotate, pack and store keys, against their twins.

Norms sum in another order than the twin, so that about one bfloat16 in a thousand becomes its neighbour and fewer codes than
that change, by one. Rotation and packing are exact.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from deepinfer.kernels.triton_compress_store import compress_store
from deepinfer.kernels.triton_expand_rows import expand_rows
from deepinfer.kernels.triton_index_store import index_store
from deepinfer.kernels.triton_store_window import norm_rope_store_window
from row_cases import (
    DEVICES,
    EPS,
    assert_same_rows,
    bits,
    empty_store,
    foreign,
    num_copies,
    plain_copy,
    pool_of,
    random_rope,
    random_rows,
    relative_error,
    rotating,
    row_numbers,
)
from row_cases import share_of_different as different
from torch import Tensor

from deepinfer.ops import numbered_rows, stored_keys

ROW_BYTES = {"window": 528, "main": 288, "index": 68}
TARGET = "≥ 80 % of copy bandwidth at ≥ 8 K tokens"
Store = Callable[..., Tensor | None]


def key_store(kind: str, store: Store, rows: int, device: str, dtype: torch.dtype = torch.bfloat16):
    """`call(store, row numbers, chosen rows)` of a window or index kernel or its twin on random keys."""
    width = 512 if kind == "window" else 128
    keys = random_rows(5, rows, width + 256, device=device)[:, 256:].to(dtype)
    weight, rope = random_rows(6, width, device=device, wide=False).to(dtype), random_rope(7, rows, device=device)
    rope = rope.double() if dtype == torch.float64 else rope

    def call(store_ABR: Tensor, numbers: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor | None:
        return store(keys[chosen], weight, EPS, rope[chosen].contiguous(), store_ABR, numbers)

    return call


def main_store(store: Store, entries: int, ratio: int, device: str, halves_dtype=torch.bfloat16, exact: bool = False):
    """The same of compress_store; every fifth pair began in the tails."""
    halves = random_rows(8, entries * 2 + 3, 1280, device=device)[:, 256:].to(halves_dtype)
    tails = random_rows(9, 4, 7, 1024, device=device).float()
    weight, rope = random_rows(6, 512, device=device, wide=False), random_rope(7, entries, device=device)
    newest = torch.arange(entries, dtype=torch.int32, device=device) * 2 + 1
    partner = torch.where(newest % 10 == 1, -1 - newest % 28, newest - 1) if ratio == 2 else None
    if exact:
        halves, tails, weight, rope = (x.double() for x in (halves, tails, weight, rope))

    def call(store_ABR: Tensor, numbers: Tensor, chosen: Tensor | slice = slice(None)) -> Tensor | None:
        pairs = {} if partner is None else {"partner_E": partner[chosen].contiguous(), "tail_ASX": tails}
        near = newest[chosen].contiguous()
        return store(halves, near, weight, EPS, rope[chosen].contiguous(), store_ABR, numbers, **pairs)

    return call


def check_store(kind: str, kernel: Store, twin: Store, exact: Store, rows: int, device: str) -> Tensor | None:
    """Compare bytes and values of two stores, and see that nothing beside the rows was touched. Returns the kernel's result."""
    found, wanted, precise = (empty_store(5, 64, ROW_BYTES[kind], device) for _ in range(3))
    numbers = row_numbers(3, rows, 5 * 64, device)
    result, _, _ = kernel(found, numbers), twin(wanted, numbers), exact(precise, numbers)
    kept = numbers[numbers >= 0]
    values = [numbered_rows.expand_rows(kind, store, kept, torch.float64) for store in (found, wanted, precise)]
    assert different(pool_of(found), pool_of(wanted)) < 1e-3
    assert relative_error(values[0], values[1]) < 0.01
    assert relative_error(values[0], values[2]) < 1.02 * relative_error(values[1], values[2])
    for store in (found, wanted):
        store[kept.long() // 64, kept.long() % 64] = 0xFF
    assert (pool_of(found) == 0xFF).all()
    return result


@pytest.mark.parametrize("device", DEVICES)
def test_window(device: str) -> None:
    rows = 13 if device == "cpu" else 261
    found = check_store(
        "window",
        key_store("window", partial(norm_rope_store_window, keys=True), rows, device),
        twin := key_store("window", partial(stored_keys.norm_rope_store_window, keys=True), rows, device),
        key_store("window", stored_keys.norm_rope_store_window, rows, device, torch.float64),
        rows,
        device,
    )
    wanted = twin(empty_store(5, 64, 528, device), row_numbers(3, rows, 5 * 64, device))
    assert different(found, wanted) < 1e-3 and relative_error(found, wanted) < 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_index(device: str) -> None:
    rows = 27 if device == "cpu" else 261
    twin = stored_keys.index_store
    check_store(
        "index",
        key_store("index", index_store, rows, device),
        key_store("index", twin, rows, device),
        key_store("index", twin, rows, device, torch.float64),
        rows,
        device,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ratio, dtype", [(1, torch.bfloat16), (2, torch.bfloat16), (2, torch.float32)])
def test_compress(ratio: int, dtype: torch.dtype, device: str) -> None:
    rows = 13 if device == "cpu" else 261
    twin = stored_keys.compress_store
    latent_EK = check_store(
        "main",
        main_store(compress_store, rows, ratio, device, dtype),
        main_store(twin, rows, ratio, device, dtype),
        main_store(twin, rows, ratio, device, dtype, exact=True),
        rows,
        device,
    )
    exact = main_store(twin, rows, ratio, device, dtype, exact=True)(
        empty_store(5, 64, 288, device), row_numbers(3, rows, 5 * 64, device)
    )
    assert relative_error(latent_EK, exact) < (5e-3 if ratio == 2 else 2.5e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ("window", "main 1", "main 2", "index"))
def test_rows_are_invariant(kind: str, device: str) -> None:
    rows, (kind, _, ratio) = 7 if device == "cpu" else 256, kind.partition(" ")
    if kind == "main":
        call = main_store(compress_store, rows, int(ratio), device, torch.float32)
    else:
        call = key_store(kind, norm_rope_store_window if kind == "window" else index_store, rows, device)

    def stored(chosen: Tensor) -> tuple[Tensor]:
        store_ABR = empty_store(4, 64, ROW_BYTES[kind], device)
        numbers = row_numbers(len(chosen), len(chosen), 256, device, hidden=0)
        call(store_ABR, numbers, chosen)
        return (store_ABR[numbers.long() // 64, numbers.long() % 64],)

    assert_same_rows(stored, rows, device)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks, block_rows", [(1 << 16, 128), (1, 5 << 20)])
def test_stores_of_any_size(blocks: int, block_rows: int) -> None:
    """Blocks of 4.1 GiB together, and one block of 2.6 GiB: the last rows are written and read in their places."""
    call = key_store("window", norm_rope_store_window, 9, "cuda")
    store_ABR = torch.empty(blocks, block_rows, 528, dtype=torch.uint8, device="cuda")
    numbers = blocks * block_rows - 9 + torch.arange(9, dtype=torch.int32, device="cuda")
    call(store_ABR, numbers)
    few_ABR, first = empty_store(1, 9, 528, "cuda"), torch.arange(9, dtype=torch.int32, device="cuda")
    call(few_ABR, first)
    assert torch.equal(store_ABR[-1, -9:], few_ABR[0])
    assert torch.equal(expand_rows("window", store_ABR, numbers), expand_rows("window", few_ABR, first))


def assert_same_bytes(kernel: Store, twin: Store, args: tuple, keys: bool = False, **pairs: Tensor) -> None:
    """Nearly all stored bytes are those of the twin; the store is the last but one argument."""
    *inputs, store, numbers = args
    kernel(*inputs, store, numbers, **({"keys": True} if keys else {}), **pairs)
    found = pool_of(store).clone()
    pool_of(store).fill_(0xFF)
    twin(*inputs, store, numbers, **pairs)
    assert different(found, pool_of(store)) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("keys, tokens", [(False, 8192), (False, 65536), (True, 65536)])
def test_speed_window(keys: bool, tokens: int, timed) -> None:
    moved = tokens * (1024 + 256 + 4 + 528 + 1024 * keys)
    low = [random_rows(i, tokens, 1792, device="cuda", wide=False)[:, 1280:] for i in range(num_copies(moved))]
    rope, weight = random_rope(1, tokens, device="cuda"), random_rows(2, 512, device="cuda", wide=False)
    stores = [empty_store(tokens // 128, 134, 528, "cuda") for _ in low]
    numbers = torch.arange(tokens, dtype=torch.int32, device="cuda")
    args = [(key, weight, EPS, rope, store, numbers) for key, store in zip(low, stores)]
    assert_same_bytes(norm_rope_store_window, stored_keys.norm_rope_store_window, args[0], keys=keys)
    timed(
        "norm_rope_store_window", f"{tokens} tokens{', keys too' * keys}",
        rotating(len(low), lambda i: norm_rope_store_window(*args[i], keys=keys)), moved_bytes=moved, variant="invariant",
        target=TARGET, peers=plain_copy(moved),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", (8192, 32768, 131072))
@pytest.mark.parametrize("ratio, dtype", [(1, torch.bfloat16), (2, torch.bfloat16), (2, torch.float32)])
def test_speed_compress(ratio: int, dtype: torch.dtype, tokens: int, timed, request: pytest.FixtureRequest) -> None:
    entries, width = tokens // ratio, 512 * ratio
    moved = tokens * width * dtype.itemsize + entries * (256 + 4 * (1 + ratio) + 288 + 1024)
    halves = [random_rows(i, tokens, width, device="cuda", wide=False).to(dtype) for i in range(num_copies(moved))]
    rope, weight = random_rope(1, entries, device="cuda"), random_rows(2, 512, device="cuda", wide=False)
    stores = [empty_store(entries // 64, 64, 288, "cuda") for _ in halves]
    numbers = torch.arange(entries, dtype=torch.int32, device="cuda")
    newest = numbers * ratio + ratio - 1
    pairs = {"partner_E": newest - 1} if ratio == 2 else {}
    args = [(half, newest, weight, EPS, rope, store, numbers) for half, store in zip(halves, stores)]
    assert_same_bytes(compress_store, stored_keys.compress_store, args[0], **pairs)
    timed(
        "compress_store", f"ratio {ratio}, {tokens} tokens, {str(dtype)[6:]}",
        rotating(len(halves), lambda i: compress_store(*args[i], **pairs)), moved_bytes=moved, variant="invariant",
        target=TARGET,
        peers=plain_copy(moved) | foreign(
            "store_main", [(half, weight, EPS, rope, numbers) for half in halves], request, ratio == 1 and tokens == 32768
        ),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("entries", (8192, 65536))
def test_speed_index(entries: int, timed) -> None:
    moved = entries * (256 + 256 + 4 + 68)
    keys = [random_rows(i, entries, 128, device="cuda", wide=False) for i in range(num_copies(moved))]
    ropes, weight = (
        [random_rope(i, entries, device="cuda") for i in range(len(keys))],
        random_rows(2, 128, device="cuda"),
    )
    stores = [empty_store(entries // 64, 64, 68, "cuda") for _ in keys]
    numbers = torch.arange(entries, dtype=torch.int32, device="cuda")
    assert_same_bytes(index_store, stored_keys.index_store, (keys[0], weight, EPS, ropes[0], stores[0], numbers))
    timed(
        "index_store", f"{entries} entries",
        rotating(len(keys), lambda i: index_store(keys[i], weight, EPS, ropes[i], stores[i], numbers)),
        moved_bytes=moved, variant="invariant", target=TARGET, peers=plain_copy(moved),
    )  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_same_bytes_twice(device: str) -> None:
    call = main_store(compress_store, 9, 2, device)
    stores = [empty_store(1, 64, 288, device) for _ in range(2)]
    latents = [call(store, torch.arange(9, dtype=torch.int32, device=device)) for store in stores]
    assert torch.equal(bits(latents[0]), bits(latents[1])) and torch.equal(*stores)
