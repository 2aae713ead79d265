"""The n-gram memory's gather (exact) and its gated addition (sums in another order, another exp) against their twins."""

import pytest
import torch
from deepinfer.kernels.triton_engram_add import engram_add
from deepinfer.kernels.triton_engram_gather import engram_gather
from row_cases import (
    DEVICES,
    EPS,
    assert_same_rows,
    bits,
    num_copies,
    plain_copy,
    random_rows,
    relative_error,
    rotating,
)
from row_cases import share_of_different as different
from torch import Tensor

from deepinfer.ops import engram
from deepinfer.ops import engram_gather as twins

SLOTS, WIDTH = 24, 256
HOST_GBYTES_PER_S = 55.0  # what the bus gives large copies
WHERE = ("device", "host", "codes on host")


def table(rows: int, device: str, where: str = "device") -> tuple[Tensor, Tensor]:
    """Codes and powers, NaN among them; on a GPU in its memory, or pinned."""
    codes = torch.randint(0, 256, (rows, WIDTH), dtype=torch.uint8, device=device)
    powers = torch.randint(100, 140, (rows, WIDTH // 32), dtype=torch.uint8, device=device)
    powers[1, 2:4] = torch.tensor([0, 255], dtype=torch.uint8)
    if where != "device":
        codes, powers = codes.cpu().pin_memory(), powers.cpu().pin_memory() if where == "host" else powers
    return codes.view(torch.float8_e4m3fn), powers


def gate_inputs(rows: int, width: int, device: str) -> tuple[Tensor, ...]:
    """Streams, keys and values as slices of one product, and the two norm weights."""
    key_value = random_rows(2, rows, 5, width, device=device)
    weights = (random_rows(seed, 4, width, device=device, wide=False) for seed in (3, 4))
    return random_rows(1, rows, 4, width, device=device), key_value[:, :4], key_value[:, 4], *weights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("where", WHERE)
def test_gather(where: str, device: str) -> None:
    if device == "cpu" and where != "device":
        pytest.skip("memory is pinned for a GPU")
    codes, powers = table(1000, device, where)
    rows_TR = torch.randint(0, 1000, (5 if device == "cpu" else 77, SLOTS), device=device)
    rows_TR[0, :3] = torch.tensor([1, 0, 999])
    rows_TR[1, ::2] = -1
    found = engram_gather(codes, powers, rows_TR)
    assert_same_numbers(found, twins.engram_gather(codes, powers, rows_TR))
    assert not found.view(*rows_TR.shape, WIDTH)[1, ::2].any(), "a negative number is no row"


def assert_same_numbers(found: Tensor, wanted: Tensor) -> None:
    """Equal, and NaN in the same places."""
    assert found.isnan().equal(wanted.isnan()) and torch.equal(found.nan_to_num(1.5), wanted.nan_to_num(1.5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", (5120, 320))
def test_add(width: int, device: str) -> None:
    x, *others = gate_inputs(3 if device == "cpu" else 65, width, device)
    found, wanted = engram_add(x, *others, EPS), engram.engram_add(x, *others, EPS)
    exact = engram.engram_add(x.double(), *(other.double() for other in others), EPS)
    assert different(found, wanted) < 2e-3
    assert relative_error(found, exact) < 2.5e-3
    room = exact.abs() / 250 + 1e-5 * others[1].abs().unsqueeze(1)
    assert ((found - exact).abs() <= room).all()


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_invariant(device: str) -> None:
    rows = 7 if device == "cpu" else 300
    codes, powers = table(100, device)
    rows_TR = torch.randint(0, 100, (rows, SLOTS), device=device)
    assert_same_rows(lambda chosen: (engram_gather(codes, powers, rows_TR[chosen]),), rows, device)
    x, key, value, q, k = gate_inputs(rows, 1280, device)
    x[3], key[5, 1] = torch.nan, torch.inf
    key_value = torch.cat((key, value.unsqueeze(1)), 1)

    def add(chosen: Tensor) -> tuple[Tensor]:
        part = key_value[chosen]
        return (engram_add(x[chosen], part[:, :4], part[:, 4], q, k, EPS),)

    assert_same_rows(add, rows, device)
    assert bits(add(torch.arange(rows, device=device))[0]).shape == bits(x).shape


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", (256, 8192))
def test_speed_gather_on_device(tokens: int, timed) -> None:
    codes, powers = table(8 << 20, "cuda")  # 2.2 GB: rows are not found in a cache
    rows = [torch.randint(0, len(codes), (tokens, SLOTS), device="cuda") for _ in range(8)]
    assert_same_numbers(engram_gather(codes, powers, rows[0]), twins.engram_gather(codes, powers, rows[0]))
    timed(
        "engram_gather", f"{tokens} x {SLOTS} rows in device memory",
        rotating(8, lambda i: engram_gather(codes, powers, rows[i])), moved_bytes=tokens * SLOTS * (264 + 8 + 512),
        variant="invariant", target="≤ 1.5 × the floor",
        peers={"torch": rotating(2, lambda i: twins.engram_gather(codes, powers, rows[i]))}
        | plain_copy(tokens * SLOTS * (264 + 8 + 512)),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("where, tokens", [(where, tokens) for where in WHERE[1:] for tokens in (256, 2048)])
def test_speed_gather_from_host(where: str, tokens: int, timed) -> None:
    """The floor is the bus: a row's bytes on the host at 55 GB/s."""
    codes, powers = table(1 << 20, "cuda", where)
    rows = [torch.randint(0, len(codes), (tokens, SLOTS), device="cuda") for _ in range(4)]
    assert_same_numbers(engram_gather(codes, powers, rows[0]), twins.engram_gather(codes, powers, rows[0]))
    host_bytes = tokens * SLOTS * (264 if where == "host" else 256)
    staging = torch.empty(host_bytes, dtype=torch.uint8, device="cuda")
    plain = torch.empty(host_bytes, dtype=torch.uint8).pin_memory()
    timed(
        "engram_gather", f"{tokens} x {SLOTS} rows, {where}",
        rotating(4, lambda i: engram_gather(codes, powers, rows[i])), moved_bytes=tokens * SLOTS * (264 + 8 + 512),
        variant="invariant", target="≤ 1.5 × the floor", host_bytes=host_bytes,
        host_floor_us=round(host_bytes / HOST_GBYTES_PER_S / 1e3, 2), runs=20,
        peers={"one copy of as many bytes": [lambda: staging.copy_(plain, non_blocking=True)] * 2},
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", (256, 4096))
def test_speed_add(tokens: int, timed) -> None:
    moved = tokens * 5120 * 2 * 13
    cases = [gate_inputs(tokens, 5120, "cuda") for _ in range(num_copies(moved))]
    assert different(engram_add(*cases[0], EPS), engram.engram_add(*cases[0], EPS)) < 2e-3
    timed(
        "engram_add", f"{tokens} x 4 x 5120", rotating(len(cases), lambda i: engram_add(*cases[i], EPS)),
        moved_bytes=moved, variant="invariant",
        peers={"torch": rotating(2, lambda i: engram.engram_add(*cases[i], EPS))} | plain_copy(moved),
    )  # fmt: skip
