"""Ranks of one host for a benchmark: one process a GPU over NCCL, or a few processes over gloo to check the script."""

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from record import options

from deepinfer.model.fused.step_graphs import captured
from deepinfer.ops.device import DeviceOps, twins
from deepinfer.parallel.peers import TorchPeers

LINK_GBPS = 450  # of an H200's NVLink, each direction
Call = Callable[[], object]
Work = Callable[[TorchPeers, torch.device, argparse.Namespace], None]


def rank_options(doc: str | None) -> argparse.ArgumentParser:
    parser = options(doc)
    parser.add_argument("--gpus", type=int, default=0, help="0: all of this host; with --device cpu processes, 2")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: over gloo, to check the script")
    return parser


def run_ranks(name: str, work: Work, asked: argparse.Namespace) -> None:
    """`work` as every rank: as processes of this one, or as torchrun started them. Exits with a sentence without two GPUs."""
    found = torch.cuda.device_count()
    if asked.device == "cuda" and (found < 2 or not 2 <= (asked.gpus or found) <= found):
        sys.exit(
            f"{name} was asked for {asked.gpus or 'all'} GPUs of this host and finds {found}; ranks exchange rows between two "
            "or more. Run it where they are, or type --device cpu to check the script"
        )
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast is off in all figures
    if "LOCAL_RANK" in os.environ:
        _rank(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]), "env://", work, asked)
        return
    size = asked.gpus or (2 if asked.device == "cpu" else found)
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_rank, (size, f"file://{folder}/store", work, asked), nprocs=size)


def _rank(number: int, size: int, where: str, work: Work, asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if asked.device == "cuda":
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    backend, bound = ("gloo", None) if asked.device == "cpu" else ("nccl", device)
    dist.init_process_group(backend, init_method=where, rank=number, world_size=size, device_id=bound)
    assert dist.group.WORLD is not None
    work(TorchPeers(dist.group.WORLD), device, asked)
    gc.collect()  # graphs end before the groups that they speak to
    dist.destroy_process_group()


def device_operations(device: torch.device) -> DeviceOps:
    """Kernels where there are some for this GPU, else the twins."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0):
        from deepinfer.ops.hopper import hopper

        return hopper()
    return twins()


def replayed(call: Call, device: torch.device, count: int = 1) -> Call:
    """`count` calls as one graph where there are graphs. All ranks run it once before, and capture it alike."""

    def several() -> None:
        for _ in range(count):
            call()

    several()
    return captured(several, device).replay if device.type == "cuda" else several


def times_us(calls: dict[str, Call], peers: TorchPeers, device: torch.device, rounds: int) -> dict[str, float]:
    """Medians over rounds, in which all take turns; of a round the slowest rank's time. The first does not count."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            spent[name].append(_once_us(call, peers, device))
    own = torch.tensor([spent[name][1:] for name in calls], dtype=torch.float64, device=device)
    slowest = peers.all_gather(own).amax(0).tolist()
    return {name: statistics.median(times) for name, times in zip(calls, slowest)}


def _once_us(call: Call, peers: TorchPeers, device: torch.device) -> float:
    """From when all ranks are there to when this one's device is through."""
    peers.all_gather(torch.zeros(1, device=device))
    if device.type == "cpu":
        started_s = time.perf_counter()
        call()
        return (time.perf_counter() - started_s) * 1e6
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def about(device: torch.device, peers: TorchPeers) -> dict[str, Any]:
    """What a line says of where it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"ranks": peers.size, "backend": dist.get_backend(peers.group), "device": name, "nvlink_multicast": False}
