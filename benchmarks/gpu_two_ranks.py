"""One model on one GPU, and with its experts over several GPUs of the host, at the same number of sequences in all.

    python benchmarks/gpu_two_ranks.py [--gpus 2] [--sequences 64 256 512] [--context 4096] [--experts 96] [--record]
    torchrun --nproc-per-node=N benchmarks/gpu_two_ranks.py …
    python benchmarks/gpu_two_ranks.py --device cpu --sequences 4 --context 40 --steps 2

V4.1-Flash's widths and 40 layers with `--experts` experts and small n-gram tables; weights are invented. A decode step is what
an engine launches: resolved on the device, all layers, head, sampling; on GPUs as graphs. First the first rank runs all
`--sequences` alone, then every rank runs its share of them and of the experts (attention data parallel, expert parallel).
`--reproducible` brings each (row, chosen expert) result back by itself. NVLink multicast is off. Medians of `--rounds` rounds
of `--steps` steps, of the slowest rank. With --device cpu a model of tiny widths checks the script.
"""

import argparse
import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from few_experts import config_of
from gpu_ranks import about, rank_options, run_ranks, times_us
from record import record

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.engine.rank_slice.clock import Clock
from deepinfer.engine.rank_slice.decode import Decoder
from deepinfer.engine.rank_slice.inputs import fill_cache
from deepinfer.engine.rank_slice.model import SliceModel
from deepinfer.engine.rank_slice.share import RankShare, share_config
from deepinfer.engine.rank_slice.weights import DummyShare
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.ops.device_choice import device_ops
from deepinfer.parallel.device_dispatch import DeviceDispatch
from deepinfer.parallel.peers import Peers, TorchPeers
from deepinfer.parallel.placement import Placement
from deepinfer.parallel.rehearsed_peers import RehearsedPeers


@dataclass(frozen=True)
class Case:
    """`sequences` of a rank."""

    config: V41Config
    share: RankShare
    device: torch.device
    sequences: int
    context: int
    reproducible: bool

    @classmethod
    def of(cls, asked: argparse.Namespace, device: torch.device, sequences: int) -> "Case":
        config, share = config_of(asked, device)
        return cls(config, share, device, sequences, asked.context, asked.reproducible)

    def operations(self) -> DeviceOps:
        if self.device.type == "cpu":
            return twins()
        return device_ops(self.config, torch.bfloat16)[0]

    def decoder(self, peers: Peers | None) -> Decoder:
        """Of the whole model, or of this rank's share of its experts."""
        layout, positions = CacheLayout.of(self.config, dtype="bfloat16", backtrack=1), self.context + 8
        ops = self.operations()
        local, dispatch = share_config(self.config, self.share), None
        if peers is not None:
            trunk = Placement.initial(local.num_hidden_layers, local.n_routed_experts, peers.size)
            dispatch = DeviceDispatch(
                peers,
                ops,
                trunk=trunk,
                draft=None,
                reproducible=self.reproducible,
                dtype=torch.bfloat16,
                device=self.device,
            )
        model = FusedModel(
            local,
            DummyShare(self.config, self.share, self.device),
            ops,
            layout=layout,
            device=self.device,
            token_classes=torch.arange(local.vocab_size).remainder(local.engram_compressed_vocab_size).numpy(),
            max_positions=positions,
            dispatch=dispatch,
        )
        if dispatch is not None:  # ranks find each other before a graph is captured
            dispatch.begin(self.sequences)
            model.serve()
        blocks = self.sequences * -(-positions // layout.block_tokens)
        cache = ModelCache(local, layout, num_blocks=blocks, num_slots=self.sequences + 1, device=self.device)
        fill_cache(cache)
        made = SliceModel(model=model, drafter=None, config=local, share=self.share)
        sizes: dict[str, Any] = {"sequences": self.sequences, "depth": 1, "max_model_len": positions}
        return Decoder(made, cache, Clock(self.device, graphs=True), **sizes)


def step_ms(case: Case, peers: Peers | None, everybody: Peers, asked: argparse.Namespace) -> float:
    torch.manual_seed(everybody.rank)
    step = case.decoder(peers).prepare(case.sequences, 1, case.context).step

    def steps() -> None:
        for _ in range(asked.steps):
            step()

    return times_us({"step": steps}, everybody, case.device, asked.rounds)["step"] / asked.steps / 1e3


def freed(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(peers: TorchPeers, device: torch.device, asked: argparse.Namespace, sequences: int) -> dict[str, Any]:
    alone_ms = 0.0
    if peers.rank == 0:
        alone_ms = step_ms(Case.of(asked, device, sequences), None, RehearsedPeers(0, 1), asked)
    freed(device)
    alone_ms = float(peers.broadcast(torch.tensor(alone_ms, device=device), 0))
    spread_ms = step_ms(Case.of(asked, device, sequences // peers.size), peers, peers, asked)
    freed(device)
    return {"sequences": sequences, "one_ms": round(alone_ms, 3), "spread_ms": round(spread_ms, 3),
            "speedup": round(alone_ms / spread_ms, 3)}  # fmt: skip


def work(peers: TorchPeers, device: torch.device, asked: argparse.Namespace) -> None:
    if odd := [sequences for sequences in asked.sequences if sequences % peers.size]:
        raise ValueError(
            f"--sequences {odd[0]} do not divide among {peers.size} ranks: give a multiple of {peers.size}"
        )
    for sequences in asked.sequences:
        line = measure(peers, device, asked, sequences)
        if peers.rank == 0:
            case = Case.of(asked, device, sequences)
            config, ops = case.config, case.operations().name
            widths = {
                "layers": config.num_hidden_layers,
                "experts": config.n_routed_experts,
                "hidden": config.hidden_size,
            }
            how = {"context": asked.context, "reproducible": asked.reproducible, "rounds": asked.rounds}
            record(Path(__file__).stem, **about(device, peers), ops=ops, **widths, **how, **line)


def main() -> None:
    parser = rank_options(__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 256, 512], help="of all ranks together")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each sequence")
    parser.add_argument("--experts", type=int, default=96, help="of a layer")
    parser.add_argument("--steps", type=int, default=8, help="of a round")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--reproducible", action="store_true")
    asked = parser.parse_args()
    run_ranks(Path(__file__).stem, work, asked)


if __name__ == "__main__":
    main()
