"""Seconds until a long prompt is in the caches, on one GPU and with its rows shared by several of a host (context parallelism).

    python benchmarks/gpu_context_prefill.py [--gpus 2] [--tokens 65536] [--chunk 8192] [--experts 96] [--replay] [--record]
    torchrun --nproc-per-node=N benchmarks/gpu_context_prefill.py …
    python benchmarks/gpu_context_prefill.py --device cpu --tokens 400 --chunk 128 --rounds 1

V4.1-Flash's widths and 40 layers with `--experts` experts and small n-gram tables; weights are invented, and whole on every
rank. A prompt runs in chunks of `--chunk` rows, on all ranks together, as an engine's steps: rows are resolved on the host,
operations launched one by one. Both sides run on the same model: alone, every rank computes all rows and says nothing to the
others. `--replay` drops rows before the last 2,048 in the layers from the boundary on (replay=compact). NVLink multicast is
off. Medians of `--rounds` rounds, sides in turns, of the slowest rank. `same_bytes`: whether caches and the last hidden state
of all ranks and of both sides are the same, byte for byte. With --device cpu a model of tiny widths checks the script.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from few_experts import config_of
from gathered_bytes import CountingPeers
from gpu_ranks import about, rank_options, run_ranks, times_us
from record import record
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.engine.rank_slice.share import share_config
from deepinfer.engine.rank_slice.weights import DummyShare
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.device import twins
from deepinfer.ops.device_choice import device_ops
from deepinfer.parallel.context import ContextDivision
from deepinfer.parallel.peers import TorchPeers

UPPER_ROWS = 2048  # that all layers compute with --replay
LEAST_ROWS = 32  # of a chunk that is divided: all but a last short one


class Prompt:
    """One prompt, fed in chunks to one model. A run reads only what it wrote, so that all begin alike."""

    def __init__(self, asked: argparse.Namespace, device: torch.device) -> None:
        whole, share = config_of(asked, device)
        config, tokens = share_config(whole, share), asked.tokens
        layout = CacheLayout.of(config, dtype="bfloat16", backtrack=1)
        self.ops = twins() if device.type == "cpu" else device_ops(config, torch.bfloat16)[0]
        self.model = FusedModel(
            config,
            DummyShare(whole, share, device),
            self.ops,
            layout=layout,
            device=device,
            token_classes=np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size,
            compact=asked.replay,
            max_positions=tokens,
        )
        blocks = -(-tokens // layout.block_tokens)
        self.cache = ModelCache(config, layout, num_blocks=blocks, num_slots=1, device=device)
        self._ids = np.random.default_rng(0).integers(3, config.vocab_size - 100, tokens)
        self._upper = max(0, tokens - UPPER_ROWS) if asked.replay else 0
        self._steps = [self._step(first, min(first + asked.chunk, tokens)) for first in range(0, tokens, asked.chunk)]
        self._last_D: Tensor | None = None

    def run(self, division: ContextDivision | None) -> None:
        self.model.division = division
        for step in self._steps:
            self._last_D = self.model.forward(step, self.cache)[-1]

    def digest(self) -> list[int]:
        """Of all bytes of the caches and of the last hidden state, by place."""
        assert self._last_D is not None, "a prompt was run"
        return [_digest(x) for x in (self.cache.blocks, self.cache.state, self._last_D)]

    def _step(self, first: int, end: int) -> StepInput:
        positions = np.arange(first, end)
        back_TG = positions[:, None] - np.arange(self.model.config.engram_max_ngram_size)
        return StepInput(
            token_ids=self._ids[positions],
            positions=positions,
            ngram_ids=np.where(back_TG >= 0, self._ids[back_TG], -1),
            row_starts=np.array([0, end - first]),
            state_slots=np.array([0]),
            block_tables=np.arange(self.cache.num_blocks)[None],
            sample_rows=np.array([end - first - 1][: end > self._upper]),
            upper_from=np.array([self._upper]),
            window_from=np.array([0]),
        )


def _digest(x: Tensor) -> int:
    bytes_N = x.contiguous().view(-1).view(torch.uint8)
    found = torch.zeros((), dtype=torch.int64, device=x.device)
    for first in range(0, len(bytes_N), 1 << 26):
        part = bytes_N[first : first + (1 << 26)].long()
        found += ((part + 1) * (torch.arange(len(part), device=x.device) * 2654435761 + first + 1)).sum()
    return int(found)


def work(peers: TorchPeers, device: torch.device, asked: argparse.Namespace) -> None:
    counted, prompt = CountingPeers(peers.group), Prompt(asked, device)
    sides = {"one": None, "shared": ContextDivision(counted, LEAST_ROWS)}
    digests = []
    for division in sides.values():
        prompt.cache.blocks.zero_()
        prompt.cache.state.zero_()
        prompt.run(division)
        digests.append(prompt.digest())
    received_bytes, told = counted.received_bytes, peers.all_gather(torch.tensor(digests, device=device))
    calls = {name: lambda division=division: prompt.run(division) for name, division in sides.items()}
    spent_us = times_us(calls, peers, device, asked.rounds)
    if peers.rank:
        return
    config, one_s, shared_s = prompt.model.config, *(spent_us[name] / 1e6 for name in sides)
    line: dict[str, Any] = about(device, peers) | {
        "ops": prompt.ops.name,
        "layers": config.num_hidden_layers,
        "experts": config.n_routed_experts,
        "hidden": config.hidden_size,
        "tokens": asked.tokens,
        "chunk": asked.chunk,
        "replay": "compact" if asked.replay else "none",
        "rounds": asked.rounds,
        "one_s": round(one_s, 3),
        "shared_s": round(shared_s, 3),
        "speedup": round(one_s / shared_s, 3),
        "share_of_ideal": round(one_s / shared_s / peers.size, 3),
        "received_mib": round(received_bytes / 2**20, 2),
        "same_bytes": bool((told == told[0, 0]).all()),
    }
    record(Path(__file__).stem, **line)


def main() -> None:
    parser = rank_options(__doc__)
    parser.add_argument("--tokens", type=int, default=65_536, help="of the prompt")
    parser.add_argument("--chunk", type=int, default=8192, help="rows of a step, on all ranks together")
    parser.add_argument("--experts", type=int, default=96, help="of a layer")
    parser.add_argument("--replay", action="store_true", help="rows before the last 2,048 stay below the boundary")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    run_ranks(Path(__file__).stem, work, asked)


if __name__ == "__main__":
    main()
