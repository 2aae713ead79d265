"""A rank in this machine's memory, and the times of its steps: the torch side of `deepinfer bench task.slice=rank`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.engine.device_memory import use_growing_pieces
from deepinfer.engine.rank_slice.clock import Clock
from deepinfer.engine.rank_slice.decode import Decoder
from deepinfer.engine.rank_slice.inputs import fill_cache, prompt_step
from deepinfer.engine.rank_slice.measure import time_decode, time_prefill
from deepinfer.engine.rank_slice.memory import measure_rank
from deepinfer.engine.rank_slice.model import slice_model
from deepinfer.engine.rank_slice.steps import prompt_call
from deepinfer.engine.rank_slice.watch import Watch
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.beside import one_by_one
from deepinfer.ops.device import DeviceOps

if TYPE_CHECKING:
    from deepinfer.cli.bench_slice_checks import CacheRoom, Points
    from deepinfer.cli.bench_slice_points import DecodePoint, PrefillPoint, Reckoning
    from deepinfer.engine.rank_slice.experts import Routing
    from deepinfer.engine.rank_slice.share import RankShare
    from deepinfer.plan.types import Plan, RankMemory

RUNS, MOST_S = 7, 0.25  # of a point
SPARE_POSITIONS = 8  # rotations behind the last row, for blocks of drafts
WATCHED_ROWS = 768  # a decode step of about as many rows is told op by op


class RankBench:
    """Builds on construction; `keep` are the rows that replay=compact keeps. `worst`: what a GPU holds at its largest steps."""

    def __init__(
        self, plan: Plan, share: RankShare, memory: RankMemory, reckoning: Reckoning, points: Points, keep: int
    ) -> None:
        self.plan, self.reckoning, self.points, self.keep = plan, reckoning, points, keep
        self.device, began = torch.device("cuda" if plan.hardware.kind == "cuda" else "cpu"), time.perf_counter()
        use_growing_pieces(self.device)
        ops, self.kernels = slice_ops(plan)
        self.watch = Watch(ops)
        config, layout = plan.model.config, plan.cache
        on_gpu = self.device.type == "cuda"
        positions = max(points.longest + SPARE_POSITIONS, plan.model.max_model_len if on_gpu else 0)
        self.share = slice_model(
            config, share, self.watch.ops, layout, self.device, compact=False, max_positions=positions
        )
        self._wait()
        self.built_s = time.perf_counter() - began
        self.weight_bytes, self.peak_bytes = self._allocated()
        self.worst = measure_rank(plan, memory, self.share) if on_gpu else None
        blocks, slots = points.blocks(layout.block_tokens), points.sequences + 1
        self.cache = ModelCache(config, layout, num_blocks=blocks, num_slots=slots, device=self.device)
        fill_cache(self.cache)
        self.clock = Clock(self.device, graphs=True, runs=RUNS, most_s=MOST_S)

    def decode(self) -> Iterator[DecodePoint]:
        decoder = self._decoder(self.clock)
        for routing in self.points.routing:
            for point in self.points.decode:
                yield self.reckoning.decode(time_decode(decoder, self.clock, *point, _routing(routing)))

    def prefill(self) -> Iterator[PrefillPoint]:
        chunk = self.plan.scheduler.max_num_batched_tokens
        for routing in self.points.routing:
            for tokens in self.points.prompts:
                for keep in (None, self.keep):
                    made = time_prefill(self.share, self.cache, self.clock, tokens, chunk, keep, _routing(routing))
                    yield self.reckoning.prefill(made)

    def ops(self, phases: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Where the time of one step of each phase goes; nothing on a CPU, whose times say nothing about kernels."""
        if self.device.type != "cuda":
            return {}
        self.share.route("balanced")
        found = {}
        if "decode" in phases and self.points.decode:
            near = min(self.points.decode, key=lambda point: (abs(point[0] * point[1] - WATCHED_ROWS), point[2]))
            body = self._decoder(Clock(self.device, graphs=False)).prepare(*near).body
            with one_by_one():
                found[f"decode {near[0]} × {near[1]} rows at {near[2]:,} tokens"] = self.watch.profile(body)
        if "prefill" in phases and self.points.prompts:
            rows = min(max(self.points.prompts), self.plan.scheduler.max_num_batched_tokens)
            step = prompt_step(self.share.config, rows, 0, rows, self.plan.cache.block_tokens, None)
            self.share.model.compact = self.share.model.rows.compact = False
            with one_by_one():
                found[f"prefill of {rows:,} tokens"] = self.watch.profile(
                    prompt_call(self.share.model, self.cache, step)
                )
        return {name: [asdict(entry) for entry in entries] for name, entries in found.items()}

    def held(self, room: CacheRoom) -> dict[str, int]:
        """Bytes: of weights as planned, as allocated and at most while they were made, of the caches. A CPU counts none."""
        weights = {"weights_planned": room.weights, "weights": self.weight_bytes, "weights_peak": self.peak_bytes}
        return weights | {"caches": self.cache.nbytes}

    def _decoder(self, clock: Clock) -> Decoder:
        most = {"sequences": self.points.sequences, "max_model_len": self.points.longest}
        return Decoder(self.share, self.cache, clock, depth=self.plan.drafting.verify_length, **most)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _allocated(self) -> tuple[int, int]:
        return (
            (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) if self.device.type == "cuda" else (0, 0)
        )


def _routing(name: str) -> Routing:
    assert name in ("balanced", "skewed")
    return "skewed" if name == "skewed" else "balanced"


def slice_ops(plan: Plan) -> tuple[DeviceOps, list[str]]:
    """The chip's kernels, and what is to be known of them; on a CPU plain torch."""
    if plan.hardware.kind != "cuda":
        from deepinfer.ops.device import twins

        return twins(), ["plain torch: times say nothing about an accelerator"]
    from deepinfer.ops.device_choice import device_ops

    dtype = getattr(torch, plan.numerics.dtype)
    ops, said = device_ops(plan.model.config, dtype, block_tokens=plan.cache.block_tokens)
    return ops, list(said)
