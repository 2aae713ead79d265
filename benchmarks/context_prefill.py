"""Seconds until a long prompt is in the caches, by one rank and by several that share its rows (context parallelism).

    python benchmarks/context_prefill.py [--context 1 2] [--tokens 1024 4096] [--chunk 2048] [--rounds 3] [--record]

Ranks are processes of this machine over gloo, one thread each; as many as the largest `--context`. Sides take turns, round by
round, and the median counts; a side takes as long as its slowest rank. `share_of_ideal` is the speedup over one rank divided by
the number of ranks. `cpu_s` is the processor time of the busiest rank, which a busy machine disturbs less, and without waiting
for others. Bytes are those that one rank receives from others for one prompt. The shape is that of the shipped tiny model, with
invented weights, or of `--config`. Every rank ends with the complete caches; bytes of all ranks and sides are compared.
"""

import hashlib
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from gathered_bytes import CountingPeers
from record import options, record

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config, parse_config
from deepinfer.config.json_file import read_object
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.dummy import dummy_weights
from deepinfer.model.v41 import V41Model
from deepinfer.ops import native
from deepinfer.parallel.context import ContextDivision

TINY = Path(__file__).parents[1] / "tests" / "fixtures" / "k6_config.json"


class Prompt:
    """One prompt, fed in chunks to one model. A run reads only what it wrote, so that all begin alike."""

    def __init__(self, config: V41Config, tokens: int, chunk: int) -> None:
        layout = CacheLayout.of(config, numerics="full", dtype="float32")
        classes = np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size
        kinds = {"numerics": "full", "dtype": "float32", "layout": layout, "token_classes": classes}
        self.model = V41Model(config, dummy_weights(config), native(), **kinds)
        self.cache = ModelCache(config, layout, num_blocks=-(-tokens // layout.block_tokens), num_slots=1)
        ids = np.random.default_rng(0).integers(3, config.vocab_size - 100, tokens)
        self._steps = [self._step(ids, first, min(first + chunk, tokens)) for first in range(0, tokens, chunk)]

    def run(self, peers: CountingPeers) -> tuple[float, float]:
        """Seconds by the clock, and of the processor."""
        self.model.division = ContextDivision(peers)
        started_s, cpu_started_s = time.perf_counter(), time.process_time()
        for step in self._steps:
            self.model.forward(step, self.cache)
        return time.perf_counter() - started_s, time.process_time() - cpu_started_s

    def digest(self) -> int:
        """Of all bytes of the caches."""
        found = hashlib.blake2b(self.cache.blocks.numpy().tobytes() + self.cache.state.numpy().tobytes(), digest_size=7)
        return int.from_bytes(found.digest(), "little")

    def _step(self, ids: np.ndarray, first: int, end: int) -> StepInput:
        positions = np.arange(first, end)
        back_TG = positions[:, None] - np.arange(4)
        return StepInput(
            token_ids=ids[positions],
            positions=positions,
            ngram_ids=np.where(back_TG >= 0, ids[back_TG], -1),
            row_starts=np.array([0, end - first]),
            state_slots=np.array([0]),
            block_tables=np.arange(self.cache.num_blocks)[None],
            sample_rows=np.array([end - first - 1]),
        )


def measure(groups: dict[int, CountingPeers], prompt: Prompt, rounds: int) -> list[dict[str, Any]]:
    """`groups`: those of the sides in which this rank has a part. One line a side."""
    lines = [{"context": context, **first_run(peers, prompt)} for context, peers in groups.items()]
    spent_s: dict[int, list[list[float]]] = {context: [] for context in groups}
    for _ in range(rounds):
        for context, peers in groups.items():
            dist.barrier(group=peers.group)
            mine_s = torch.tensor(prompt.run(peers), dtype=torch.float64)
            spent_s[context].append(peers.all_gather(mine_s).amax(0).tolist())
    for line in lines:
        line["prefill_s"], line["cpu_s"] = (round(median(one), 3) for one in zip(*spent_s[line["context"]]))
    return lines


def first_run(peers: CountingPeers, prompt: Prompt) -> dict[str, Any]:
    """It does not count, and says what a run moves and writes."""
    prompt.cache.blocks.zero_()
    prompt.cache.state.zero_()
    before_bytes = peers.received_bytes
    prompt.run(peers)
    received_mib = round((peers.received_bytes - before_bytes) / 2**20, 2)
    digests = peers.all_gather(torch.tensor([prompt.digest()])).flatten().tolist()
    assert len(set(digests)) == 1, "ranks have different caches"
    return {"received_mib": received_mib, "digest": digests[0]}


def rank(number: int, asked: Any, folder: str) -> None:
    torch.set_num_threads(1)
    size = max(asked.context)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=number, world_size=size)
    made = {context: dist.new_group(list(range(context))) for context in asked.context}
    groups = {context: CountingPeers(group) for context, group in made.items() if number < context}
    config = parse_config(read_object(Path(asked.config)))
    for tokens in asked.tokens:
        lines = measure(groups, Prompt(config, tokens, asked.chunk), asked.rounds)
        if number == 0:
            tell(lines, tokens, asked)
    dist.barrier()
    dist.destroy_process_group()


def tell(lines: list[dict[str, Any]], tokens: int, asked: Any) -> None:
    assert len({line.pop("digest") for line in lines}) == 1, "several ranks have other caches than one"
    alone = next((dict(line) for line in lines if line["context"] == 1), None)
    for line in lines:
        if alone is not None:
            line["speedup"], line["cpu_speedup"] = (round(alone[of] / line[of], 2) for of in ("prefill_s", "cpu_s"))
            line["share_of_ideal"] = round(alone["prefill_s"] / line["prefill_s"] / line["context"], 2)
        about = {"tokens": tokens, "chunk": asked.chunk, "backend": "gloo", "config": Path(asked.config).name}
        record(Path(__file__).stem, **about, **line, rounds=asked.rounds, load=[round(v, 1) for v in os.getloadavg()])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--context", type=int, nargs="+", default=[1, 2], help="ranks that share the prompt, rising")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--chunk", type=int, default=2048, help="rows of a step, on all ranks together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--config", default=str(TINY), help="a config.json of the family")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank, (asked, folder), nprocs=max(asked.context))


if __name__ == "__main__":
    main()
