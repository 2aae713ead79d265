"""Rows to experts on other ranks and back, beside one plain exchange of the same bytes; and what reproducible sums cost.

    python benchmarks/expert_dispatch.py [--ranks 2] [--tokens 1 4 16 64 256 1024 4096] [--rounds 30] [--record]

Processes of this machine over gloo, one thread each. A round is dispatch and combine of one layer in V4.1-Flash's widths with
`--tokens` rows on every rank: routing, packing to FP8, three collectives, and the sum over chosen experts. The experts
themselves are left out: each gives back the row that came. Sides take turns, round by round, and the median counts:

    unreduced  each (row, chosen expert) result travels back by itself, as with sampling=reproducible
    partial    each rank sums what it has of a row first
    plain_*    two `all_to_all_single` that carry the same bytes with the same splits, and nothing else

Bytes are those of one rank, what it sends to itself included.
"""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from record import options, record
from torch import Tensor

from deepinfer.model.layer_weights import ExpertWeights
from deepinfer.ops import native
from deepinfer.parallel.all_to_all import AllToAllDispatch
from deepinfer.parallel.peers import TorchPeers
from deepinfer.parallel.placement import Placement

HIDDEN, EXPERTS, CHOSEN = 5120, 384, 6  # of V4.1-Flash's trunk
SIDES = ("unreduced", "partial")
FEWEST_ROUNDS, MOST_ROWS = 5, 20_000  # rows of all rounds together, so that long ones end


class CountingPeers(TorchPeers):
    """Notes how many bytes went to each rank in the exchanges of a round."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.sent: list[tuple[list[int], list[int], int]] = []

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Callable[[], Tensor]:
        self.sent.append((list(send), list(receive), rows.shape[1]))
        return super().exchange(rows, send, receive)


def layer_of(peers: CountingPeers, *, reproducible: bool) -> Any:
    """One layer's dispatch whose experts give back what came."""
    ops = replace(native(), routed_experts=lambda x, picks, weights, *experts: x)
    placement = Placement.initial(1, EXPERTS, peers.size)
    dispatch = AllToAllDispatch(peers, ops, trunk=placement, draft=None, numerics="full", reproducible=reproducible)
    none = (torch.zeros(0),) * placement.slots_per_rank
    gate = torch.zeros(EXPERTS, HIDDEN)
    return dispatch.layer(0, ExpertWeights(gate, gate[:, 0], gate, torch.zeros(HIDDEN, 0), none, none, CHOSEN), str)


def plain(peers: CountingPeers, moved: list[tuple[list[int], list[int], int]]) -> Callable[[], None]:
    """The same bytes, there and back."""
    rows = [torch.zeros(sum(send), width, dtype=torch.uint8) for send, _, width in moved]
    out = [torch.zeros(sum(receive), width, dtype=torch.uint8) for _, receive, width in moved]

    def exchange() -> None:
        for (send, receive, _), x, y in zip(moved, rows, out):
            dist.all_to_all_single(y, x, receive, send, group=peers.group)

    return exchange


def timed(act: Callable[[], Any], peers: CountingPeers) -> float:
    """Seconds from when all ranks are there to when this one is through."""
    dist.barrier(group=peers.group)
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


def measure(peers: CountingPeers, tokens: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(peers.rank)
    x = native().quantise_activation(torch.from_numpy(rng.standard_normal((tokens, HIDDEN), dtype=np.float32)))
    picks = torch.from_numpy(rng.random((tokens, EXPERTS)).argsort(1)[:, :CHOSEN].copy())
    weights = torch.from_numpy(rng.random((tokens, CHOSEN), dtype=np.float32))
    acts: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {"tokens": tokens}
    for side in SIDES:
        layer = layer_of(peers, reproducible=side == "unreduced")
        acts[side] = lambda layer=layer: layer.start(x, picks, weights)()
        peers.sent.clear()
        acts[side]()
        acts[f"plain_{side}"] = plain(peers, list(peers.sent))
        found[f"{side}_out_bytes"], found[f"{side}_back_bytes"] = (sum(send) * width for send, _, width in peers.sent)
    spent = {name: [timed(act, peers)] for name, act in acts.items()}  # the first time does not count
    rounds = max(FEWEST_ROUNDS, min(rounds, MOST_ROWS // tokens))
    for _ in range(rounds):
        for name, act in acts.items():
            spent[name].append(timed(act, peers))
    slowest = peers.all_gather(torch.tensor([spent[name][1:] for name in acts], dtype=torch.float64)).amax(0)
    found |= {f"{name}_us": round(1e6 * float(times.median()), 1) for name, times in zip(acts, slowest)}
    for side in SIDES:
        found[f"{side}_over_plain"] = round(found[f"{side}_us"] / found[f"plain_{side}_us"], 2)
    found["rounds"] = rounds
    found["price_of_reproducible"] = round(found["unreduced_us"] / found["partial_us"], 2)
    return found


def rank(number: int, ranks: int, folder: str, tokens: list[int], rounds: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=number, world_size=ranks)
    peers = CountingPeers(dist.group.WORLD)
    lines = [measure(peers, count, rounds) for count in tokens]
    dist.destroy_process_group()
    if number == 0:
        for line in lines:
            about = {"ranks": ranks, "backend": "gloo", "hidden": HIDDEN, "experts": EXPERTS, "chosen": CHOSEN}
            record(Path(__file__).stem, **about, **line, load=[round(v, 1) for v in os.getloadavg()])
        table(lines)


def table(lines: list[dict[str, Any]]) -> None:
    heads = ["tokens", "unreduced_us", "plain_unreduced_us", "unreduced_over_plain", "partial_us", "plain_partial_us",
             "partial_over_plain", "price_of_reproducible", "unreduced_out_bytes", "unreduced_back_bytes",
             "partial_back_bytes"]  # fmt: skip
    rows = [heads, *[[f"{line[head]:,}" for head in heads] for line in lines]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        print("  ".join(value.rjust(width) for value, width in zip(row, widths)))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024, 4096], help="of each rank")
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank, (asked.ranks, folder, asked.tokens, asked.rounds), nprocs=asked.ranks)


if __name__ == "__main__":
    main()
