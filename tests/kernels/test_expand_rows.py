"""Packed cache rows read back: bit for bit the twin's numbers, NaN in the same places."""

import pytest
import torch
from deepinfer.kernels.triton_expand_rows import expand_rows
from row_cases import DEVICES, empty_store, num_copies, plain_copy, rotating, row_numbers

from deepinfer.ops import numbered_rows

ROW_BYTES = {"window": 528, "main": 288, "index": 68}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", tuple(ROW_BYTES))
def test_rows_read_back_exactly(kind: str, device: str) -> None:
    store_ABR = empty_store(3, 128, ROW_BYTES[kind], device)
    store_ABR.copy_(torch.randint(0, 255, store_ABR.shape, dtype=torch.uint8, device=device) & 0xF7)
    numbers = row_numbers(1, 37 if device == "cpu" else 300, 3 * 128, device)
    found, wanted = expand_rows(kind, store_ABR, numbers), numbered_rows.expand_rows(kind, store_ABR, numbers)
    assert found.isnan().equal(wanted.isnan()) and torch.equal(found.nan_to_num(1.5), wanted.nan_to_num(1.5))
    assert (found[numbers < 0] == 0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", tuple(ROW_BYTES))
def test_speed_expand(kind: str, timed) -> None:
    rows = 131072
    moved = rows * (ROW_BYTES[kind] + 4 + 2 * (128 if kind == "index" else 512))
    stores = [empty_store(rows // 128, 128, ROW_BYTES[kind], "cuda") for _ in range(num_copies(moved))]
    for store in stores:
        store.random_(0, 112)
    numbers = row_numbers(1, rows, rows, "cuda", hidden=0)
    timed(
        "expand_rows", f"{rows} {kind} rows in no order",
        rotating(len(stores), lambda i: expand_rows(kind, stores[i], numbers)), moved_bytes=moved, variant="invariant",
        peers={"torch": rotating(2, lambda i: numbered_rows.expand_rows(kind, stores[i], numbers))} | plain_copy(moved),
    )  # fmt: skip
