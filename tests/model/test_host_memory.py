"""Tables that stay on the host: their pages are locked where they lie, for as long as they are there."""

import gc
from typing import Any

import pytest
import torch
from chunk_worlds import ChunkWorlds
from fused_models import wide_classes, wide_config, wide_stored

from deepinfer.arch.cache import CacheLayout
from deepinfer.model.fused import host_memory
from deepinfer.model.fused.host_memory import readable_on_host
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.engram_gather import engram_gather

GPU = torch.device("cuda")


class Driver:
    """What of the CUDA runtime is asked; `fault` is what locking returns."""

    def __init__(self, fault: int = 0) -> None:
        self.fault, self.locked, self.calls = fault, {}, []

    def cudaHostRegister(self, start: int, size: int, flags: int) -> int:
        self.calls.append("lock")
        if not self.fault:
            self.locked[start] = size
        return self.fault

    def cudaHostUnregister(self, start: int) -> int:
        self.calls.append("unlock")
        del self.locked[start]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(host_memory, "SMALL_BYTES", 1000)
    return made


def test_a_large_table_is_locked_in_place_until_nobody_has_it(driver: Driver) -> None:
    table = torch.zeros(100, 32, dtype=torch.uint8)
    host = readable_on_host(table, GPU)
    assert host.data_ptr() == table.data_ptr() and driver.locked == {table.data_ptr(): 3200}
    part = host[3:]
    del table, host
    gc.collect()
    assert driver.calls == ["lock"] and part.sum() == 0
    del part
    gc.collect()
    assert driver.calls == ["lock", "unlock"] and not driver.locked


def test_a_small_one_comes_from_torchs_pinned_memory(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Any] = []

    def pin_memory(x: torch.Tensor) -> torch.Tensor:
        pinned.append(x)
        return x

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    table = torch.zeros(9, 32)[:, :4]
    assert readable_on_host(table, GPU).is_contiguous() and len(pinned) == 1 and not driver.calls


def test_what_the_system_does_not_lock_is_said_with_what_to_type(driver: Driver) -> None:
    driver.fault = 2
    with pytest.raises(RuntimeError, match=r"n-gram table .* could not be locked .*parallel\.engram=sharded"):
        readable_on_host(torch.zeros(1000), GPU)


def test_a_cpu_reads_all_of_its_memory(driver: Driver) -> None:
    table = torch.zeros(1000)
    assert readable_on_host(table, torch.device("cpu")) is table and not driver.calls


@pytest.mark.gpu
def test_a_gpu_reads_a_table_whose_pages_were_locked() -> None:
    """Codes of 75 MiB are locked where they lie, their powers come from torch's pinned memory."""
    from deepinfer.ops.hopper import hopper

    codes = torch.randint(0, 120, (300_000, 256), dtype=torch.uint8)
    powers = torch.randint(120, 130, (300_000, 8), dtype=torch.uint8)
    table = readable_on_host(codes, GPU).view(torch.float8_e4m3fn), readable_on_host(powers, GPU)
    assert table[0].data_ptr() == codes.data_ptr() and all(part.is_pinned() for part in table)
    rows = torch.randint(-1, 300_000, (64, 24), device="cuda")
    assert torch.equal(hopper().engram_gather(*table, rows).cpu(), engram_gather(*table, rows.cpu()))


@pytest.mark.gpu
def test_a_model_with_tables_on_the_host_is_that_with_tables_on_the_gpu() -> None:
    """Hidden states of chunks, launched and as a graph."""
    from deepinfer.ops.hopper import hopper

    layout = CacheLayout.of(wide_config(), dtype="bfloat16", backtrack=6)
    made = {"layout": layout, "device": "cuda", "token_classes": wide_classes(), "max_positions": 512}
    here, on_host = (
        FusedModel(wide_config(), wide_stored(), hopper(), host_tables=host, **made) for host in (False, True)
    )
    (table,) = [layer.engram.weights for layer in on_host.layers if layer.engram is not None][:1]
    for part in (table.codes_AK, table.powers_AG):
        assert part.device.type == "cpu" and part.is_pinned()
    worlds = ChunkWorlds(on_host, num_slots=2, max_model_len=400, most_rows=256)
    chunks, alone = worlds.chunk_step(graphs=True), worlds.cache(0)
    for pieces in ([(0, 0, 200), (1, 0, 3)], [(0, 200, 201), (1, 3, 4)]):
        direct_TD, replayed_TD = worlds.both(chunks, *pieces)
        wanted_TD = here.forward(worlds.input(*pieces), alone)
        assert torch.equal(direct_TD, wanted_TD) and torch.equal(replayed_TD, wanted_TD)
    chunks.close()
