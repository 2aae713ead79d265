"""Times of index scores (CUDA C++, on GPUs only); test_index_scores.py checks them.

Apart, because timed stores exceed the cache and are filled on the device; checks take small ones that float64 can follow.
"""

from dataclasses import dataclass, field

import pytest
import torch
from deepinfer.kernels.cuda_candidate_scores import candidate_scores
from deepinfer.kernels.cuda_index_scores import paged_index_scores
from torch import Tensor

from deepinfer import formats

HEADS, DIMS = 32, 128
COPIES_BYTES = 256_000_000  # of keys together: more than the second-level cache holds
BANDWIDTH = {"target": "≥ 70 % of copy bandwidth"}
FLOOR = {"target": "≥ 70 % of the floor"}  # which is arithmetic where six rows share their keys
DEEP_GEMM = {"published": "DeepGEMM fp8, 64 heads, 262K: 10.4 µs, 3.3 TB/s (aiconfigurator 0.12)"}


@dataclass(frozen=True)
class Speed:
    """One timed case. `binades`: what the scales of a key's groups lie within. Peers take decoded keys: few cases ask them."""

    sequences: int
    entries: int
    rows: int = 1
    together: int = 1
    binades: int = 2
    peers: bool = False
    values: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.sequences}x{self.rows} of {self.entries}, {self.binades} binades"


def inputs(case: Speed, block: int = 64) -> tuple[Tensor, ...]:
    """Random key bytes, queries and weights."""
    blocks = case.sequences * (case.entries // block)
    whole = torch.randint(0, 256, (blocks, block * 68 + 256), dtype=torch.uint8, device="cuda")
    store = whole.as_strided((blocks, block, 68), (block * 68 + 256, 68, 1))
    store[:, :, 64:] = torch.randint(118, 119 + case.binades, (blocks, block, 4), dtype=torch.uint8, device="cuda")
    tables = torch.randperm(blocks, device="cuda").int().view(case.sequences, -1)
    sequence = torch.arange(case.sequences, dtype=torch.int32, device="cuda").repeat_interleave(case.rows)
    q = formats.fake_index(torch.randn(len(sequence), HEADS, DIMS, device="cuda").bfloat16())
    weight = torch.randn(len(sequence), HEADS, device="cuda")
    return q, weight, store, tables, sequence, torch.full_like(sequence, case.entries)


def peers_of(case: Speed, copies: list[tuple[Tensor, ...]]) -> dict[str, object]:
    import kernel_peers

    decoded = []
    for q, weight, store, tables, *_ in copies:
        keys = formats.unpack_index(store[tables.long()].flatten(1, 2), torch.bfloat16)
        decoded.append((q, weight, keys if case.rows == 1 else keys[0]))
    return kernel_peers.index_decode(decoded) if case.rows == 1 else kernel_peers.index_prefill(decoded)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Speed(1, 65536, values=BANDWIDTH),
        Speed(1, 262144, peers=True, values={**BANDWIDTH, **DEEP_GEMM}),
        Speed(16, 65536, values=BANDWIDTH),
        Speed(64, 65536, values=BANDWIDTH),
        Speed(64, 8192, peers=True),
        Speed(16, 65536, rows=6, together=6, values={"form": "int8", **FLOOR}),
        Speed(16, 65536, rows=6, together=6, binades=9, values={"form": "e4m3", **FLOOR}),
        Speed(1, 16384, rows=2048, together=16, peers=True, values={"form": "int8"}),
        Speed(1, 65536, rows=2048, together=16, values={"form": "int8"}),
        Speed(1, 16384, rows=2048, together=16, binades=9, values={"form": "e4m3"}),
    ],
    ids=str,
)
def test_speed_of_scores(case: Speed, timed, request) -> None:
    """Decode reads keys from memory; in prefill all rows read the same few, from the second-level cache."""
    if not request.config.getoption("--time"):
        pytest.skip("inputs are built only to be timed")
    key_bytes = case.sequences * case.entries * 68
    copies = [inputs(case) for _ in range(2 if case.rows > 6 else max(2, COPIES_BYTES // key_bytes))]
    rows = case.sequences * case.rows
    outs = [torch.empty(rows, case.entries, device="cuda") for _ in copies]
    calls = [lambda x=x, out=out: paged_index_scores(*x, out, case.together) for x, out in zip(copies, outs)]
    peers = peers_of(case, copies[:4]) if case.peers else {}
    flops, moved = 2.0 * HEADS * DIMS * rows * case.entries, key_bytes + 4 * rows * case.entries
    timed(
        "index_scores",
        str(case),
        calls,
        flops=flops,
        dtype="fp8",
        moved_bytes=moved,
        peers=peers,
        runs=20,
        **case.values,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 64])
def test_speed_of_candidate_scores(rows: int, timed) -> None:
    """2048 random blocks of 65,536 entries a row: 16,384 keys in pieces of 544 bytes."""
    copies = [inputs(Speed(rows, 65536)) for _ in range(1 if rows == 64 else 128)]
    blocks = torch.rand(rows, 8192, device="cuda").topk(2048).indices.sort().values.int()
    out = torch.empty(rows, 16384, device="cuda")
    calls = [lambda x=x: candidate_scores(*x, blocks, out) for x in copies]
    flops, moved = 2.0 * HEADS * DIMS * rows * 16384, rows * 16384 * 72
    timed("candidate_scores", f"{rows} rows of 16384", calls, flops=flops, dtype="fp8", moved_bytes=moved)
