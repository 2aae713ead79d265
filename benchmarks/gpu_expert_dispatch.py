"""Rows to experts on other GPUs of one host and back, beside plain exchanges of the same bytes in the same run.

    python benchmarks/gpu_expert_dispatch.py [--gpus N] [--tokens 1 4 16 64 256 1024 4096] [--rounds 50] [--record]
    torchrun --nproc-per-node=N benchmarks/gpu_expert_dispatch.py …
    python benchmarks/gpu_expert_dispatch.py --device cpu --tokens 1 4 --rounds 2

One layer in V4.1-Flash's widths: 384 experts, of which every row chooses 6, and `--tokens` rows on every rank. Experts
themselves are left out. NVLink multicast is off. Sides take turns; of a round the slowest rank counts, of rounds the median:

    dispatch        slots, packing to FP8 (5,280 bytes a row, and 48 of slots and weights), the exchange of fixed size
    combine         the exchange of each rank's sums (bfloat16, 10,240 bytes a row), and their sum
    unreduced       the same with each (row, chosen expert) result by itself, as with sampling=reproducible
    layer           a whole layer with the sums: dispatch, unpacking, sorting, each rank's sums, combine
    split_layer     the same with exact numbers, which the host reads: what long chunks take
    plain_…         `all_to_all_single` of 5,280 and of 10,240 bytes a row, to every rank as many rows, nothing else

All but split_layer run inside of CUDA graphs. GB/s are bytes that leave a GPU for others, of the plain exchange's rows; shares
are those of an H200's 450 GB/s in one direction.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_ranks import LINK_GBPS, Call, about, device_operations, rank_options, replayed, run_ranks, times_us
from record import record
from torch import Tensor

from deepinfer.model.fused.stored_weights import FusedExpertWeights
from deepinfer.ops.device import DeviceOps
from deepinfer.parallel.device_dispatch import DeviceDispatch, DeviceExperts
from deepinfer.parallel.peers import TorchPeers
from deepinfer.parallel.placement import Placement

HIDDEN, EXPERTS, CHOSEN = 5120, 384, 6  # of V4.1-Flash's trunk
ROW_BYTES, SUM_BYTES = HIDDEN + HIDDEN // 32, 2 * HIDDEN
IN_A_GRAPH = 10  # calls
TIMED = ("dispatch", "plain_dispatch", "combine", "plain_combine", "unreduced", "layer", "split_layer")


class Layer:
    """One layer's dispatch between rows of this rank and experts that give back what lies there already."""

    def __init__(self, peers: TorchPeers, ops: DeviceOps, device: torch.device, tokens: int, *, fixed: bool) -> None:
        placement = Placement.initial(1, EXPERTS, peers.size)
        self.dispatch = DeviceDispatch(
            peers,
            ops,
            trunk=placement,
            draft=None,
            reproducible=False,
            dtype=torch.bfloat16,
            device=device,
            most_rows=tokens if fixed else 0,
        )
        generator = torch.Generator(device).manual_seed(peers.rank)
        gate, none = torch.zeros(EXPERTS, HIDDEN, dtype=torch.bfloat16, device=device), object()
        weights = FusedExpertWeights(gate, gate[:, 0].float(), none, none, none, none, placement.slots_per_rank, CHOSEN)
        self.parts_PD = torch.zeros(peers.size * tokens * CHOSEN, HIDDEN, dtype=torch.bfloat16, device=device)
        self.experts: DeviceExperts = self.dispatch.layer(
            0, weights, lambda x, pairs: self.parts_PD[: len(pairs.rows_P)]
        )
        x_TD = torch.randn(tokens, HIDDEN, generator=generator, device=device).bfloat16()
        grid_TD = ops.quantise(x_TD).grid_TD
        assert grid_TD is not None
        self.x_TD, self.tokens = grid_TD, tokens
        self.picks_TX = (
            torch.rand(tokens, EXPERTS, generator=generator, device=device).argsort(1)[:, :CHOSEN].int().contiguous()
        )
        self.weights_TX = torch.rand(tokens, CHOSEN, generator=generator, device=device)
        self.dispatch.begin(tokens)

    def packed(self) -> Tensor:
        slots_TX = self.dispatch.slots(0, self.picks_TX)
        return self.experts.messages.pack(self.dispatch.ops, self.x_TD, slots_TX, self.weights_TX)

    def out(self) -> Tensor:
        return self.dispatch.peers.begin_all_gather(self.packed())()

    def back(self, parts_ND: Tensor, places_TY: Tensor) -> Tensor:
        peers = self.dispatch.peers
        came = peers.all_to_all(parts_ND.view(torch.uint8).unflatten(0, (peers.size, -1)))
        return self.dispatch.ops.combine(came.flatten(0, 1).view(parts_ND.dtype), places_TY, None)

    def whole(self) -> Tensor:
        parts = self.experts.start(self.x_TD, self.picks_TX, self.weights_TX)()
        return self.dispatch.ops.combine(parts.parts_PD, parts.places_TY, None)


def plain(peers: TorchPeers, device: torch.device, tokens: int, row_bytes: int) -> Call:
    sent, came = (torch.zeros(peers.size * tokens, row_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: dist.all_to_all_single(came, sent, group=peers.group)


def places(rows: int, columns: int, device: torch.device) -> Tensor:
    """int32 [rows, columns]: every part is of one row."""
    return torch.arange(rows * columns, dtype=torch.int32, device=device).view(columns, rows).T.contiguous()


def measure(peers: TorchPeers, device: torch.device, ops: DeviceOps, tokens: int, rounds: int) -> dict[str, Any]:
    fixed, split = (Layer(peers, ops, device, tokens, fixed=which) for which in (True, False))
    sums_ND = fixed.parts_PD[: peers.size * tokens]
    of_sums, of_results = places(tokens, peers.size, device), places(tokens, CHOSEN, device)
    calls: dict[str, Call] = {
        "dispatch": fixed.out,
        "plain_dispatch": plain(peers, device, tokens, ROW_BYTES),
        "combine": lambda: fixed.back(sums_ND, of_sums),
        "plain_combine": plain(peers, device, tokens, SUM_BYTES),
        "unreduced": lambda: fixed.back(fixed.parts_PD, of_results),
        "layer": fixed.whole,
    }
    count = IN_A_GRAPH if device.type == "cuda" else 1
    ready = {name: replayed(call, device, count) for name, call in calls.items()}
    found = {name: us / count for name, us in times_us(ready, peers, device, rounds).items()}
    split.whole()
    found |= times_us({"split_layer": split.whole}, peers, device, rounds)
    line: dict[str, Any] = {"tokens": tokens} | {f"{name}_us": round(found[name], 1) for name in TIMED}
    for name, row_bytes in (("dispatch", ROW_BYTES), ("combine", SUM_BYTES)):
        for side in (name, f"plain_{name}"):
            line[f"{side}_gbps"] = round((peers.size - 1) * tokens * row_bytes / found[side] / 1e3, 1)
        line[f"{name}_share"] = round(line[f"{name}_gbps"] / LINK_GBPS, 3)
        line[f"{name}_speedup"] = round(found[f"plain_{name}"] / found[name], 3)
    return line | {"rounds": rounds}


def work(peers: TorchPeers, device: torch.device, asked: argparse.Namespace) -> None:
    ops = device_operations(device)
    widths = {"hidden": HIDDEN, "experts": EXPERTS, "chosen": CHOSEN, "row_bytes": ROW_BYTES, "sum_bytes": SUM_BYTES}
    for tokens in asked.tokens:
        line = measure(peers, device, ops, tokens, asked.rounds)
        if peers.rank == 0:
            record(Path(__file__).stem, **about(device, peers), ops=ops.name, **widths, **line)


def main() -> None:
    parser = rank_options(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024, 4096], help="of each rank")
    parser.add_argument("--rounds", type=int, default=50)
    asked = parser.parse_args()
    run_ranks(Path(__file__).stem, work, asked)


if __name__ == "__main__":
    main()
