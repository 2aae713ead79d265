"""What a device really delivers at the shapes of V4.1-Flash: products, memory, host link, launches, collectives.

    python benchmarks/ceilings.py [--device cuda] [--chip h200] [--only gemm memory launch collectives] [--runs 40] [--record]

Needs torch, numpy and PyYAML only. Inputs are random, and rotate among copies larger than the cache. On a GPU a sample is one
replay of a CUDA graph of all copies, divided by their number; medians, p10 and p90 are of `--runs` samples. `floor_us` is the
time that the peaks of conf/hardware/CHIP.yaml allow, `share` that over the median: what `cost=measured` takes. Collectives
need two GPUs or more; NVLink multicast stays off.
"""

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from chip_sheet import CONF, another_chip, chip_facts
from device_timer import captured, elapsed_us
from record import options, record
from torch.nn.functional import linear

PRODUCTS = {  # V4.1-Flash, N × K of one layer; wo_a is eight groups beside each other
    "wqa_wkv": (1792, 5120),
    "wq_b": (32768, 1280),
    "wo_b": (5120, 8192),
    "shared_up": (4608, 5120),
    "shared_down": (5120, 2304),
    "engram": (25600, 6144),
}
ON_CPU = {"wqa_wkv": (1792, 5120), "shared_down": (5120, 2304)}
CACHE_BYTES = 256 << 20  # several times the second-level cache of any chip we know
MESSAGES = tuple(8 << (10 + 3 * step) for step in range(6))  # 8 KiB … 256 MiB
PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
Call = Callable[[], object]


class Bench:
    """Where and how often to measure, and the peaks that conf/hardware/CHIP.yaml states, in FLOP/s and bytes/s."""

    def __init__(self, chip: str, device: str, runs: int) -> None:
        facts = chip_facts(chip)
        self.chip, self.device, self.runs = chip, device, runs
        self.on_cpu = device == "cpu"
        self.peaks = {dtype: _rate(fact["value"]) for dtype, fact in facts["peak_flops_by_dtype"].items()}
        self.bandwidth = _rate(facts["memory_bandwidth_bytes_per_s"]["value"])
        self.links = {name: _rate(link["value"]) for name, link in facts["links"].items()}


def _rate(text: str) -> float:
    number, prefix = re.fullmatch(r"([\d.]+)([kMGTP]?)(?:B|FLOP)/s", text).groups()
    return float(number) * PREFIXES[prefix]


def keep(bench: Bench, what: str, samples_us: np.ndarray, floors_s: dict[str, float], **values: Any) -> None:
    """One line: spread of the samples, the floor of the data sheet, and the share of it that was reached."""
    low, median, high = (float(q) for q in np.percentile(samples_us, (10, 50, 90)))
    bound = max(floors_s, key=floors_s.__getitem__, default="")
    floor_us = floors_s[bound] * 1e6 if bound else None
    spread = {"median_us": round(median, 3), "p10_us": round(low, 3), "p90_us": round(high, 3), "runs": len(samples_us)}
    against = {"bound": bound, "floor_us": round(floor_us, 3), "share": round(floor_us / median, 4)} if bound else {}
    record(Path(__file__).stem, what=what, **values, **spread, **against, chip=bench.chip, **device_facts(bench))


def device_facts(bench: Bench) -> dict[str, Any]:
    if bench.on_cpu:
        return {"device": "cpu", "threads": torch.get_num_threads()}
    return {
        "device": torch.cuda.get_device_name(),
        "devices": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def sample_us(bench: Bench, calls: list[Call], graph: bool = True) -> np.ndarray:
    """Microseconds of one call, `bench.runs` times, after warming up."""
    for call in (*calls, *calls):
        call()
    if bench.on_cpu:
        return np.array([_clock_us(calls) for _ in range(bench.runs)])
    torch.cuda.synchronize()
    replay = captured(calls).replay if graph else lambda: [call() for call in calls]
    for _ in range(3):
        replay()
    return np.array([elapsed_us(replay) for _ in range(bench.runs)]) / len(calls)


def _clock_us(calls: list[Call]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - started) * 1e6 / len(calls)


def products(bench: Bench, m: int, n: int, k: int) -> Iterator[tuple[str, list[Call]]]:
    """Number format → one call for each copy of the operands."""
    f8, device = not bench.on_cpu, bench.device
    copies = max(2, min(24, CACHE_BYTES // (n * k)))
    dtype = torch.bfloat16 if f8 else torch.float32
    xs = [torch.randn(m, k, device=device, dtype=dtype) for _ in range(copies)]
    ws = [torch.randn(n, k, device=device, dtype=dtype) for _ in range(copies)]
    yield ("bf16" if f8 else "f32"), [lambda x=x, w=w: linear(x, w) for x, w in zip(xs, ws)]
    if not f8:
        return
    xs, ws = [x.to(torch.float8_e4m3fn) for x in xs], [w.to(torch.float8_e4m3fn) for w in ws]
    for name, (a, b) in {
        "tensor": (torch.ones((), device=device), torch.ones((), device=device)),
        "row": (torch.ones(m, 1, device=device), torch.ones(1, n, device=device)),
        "block128": (torch.ones(k // 128, m, device=device).t(), torch.ones(n // 128, k // 128, device=device).t()),
    }.items():
        yield f"f8_e4m3/{name}", [_scaled(x, w, a, b) for x, w in zip(xs, ws)]


def _scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Call:
    return lambda: torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def measure_gemm(bench: Bench) -> None:
    shapes = ON_CPU if bench.on_cpu else PRODUCTS
    for (name, (n, k)), m in itertools.product(shapes.items(), (8, 64) if bench.on_cpu else (64, 4096)):
        for form, calls in products(bench, m, n, k):
            dtype = form.partition("/")[0]
            size = {"bf16": 2, "f32": 4, "f8_e4m3": 1}[dtype]
            moved = size * k * (m + n) + (4 if dtype == "f32" else 2) * m * n
            floors = {"compute": 2 * m * n * k / bench.peaks[dtype], "memory": moved / bench.bandwidth}
            try:
                samples = sample_us(bench, calls)
            except RuntimeError as error:  # a scaling that this build or chip does not offer
                print(f"skipped {name} {form} M={m}: {str(error).splitlines()[0]}", flush=True)
                continue
            rates = {"tflops": round(2 * m * n * k / np.median(samples) / 1e6, 3)}
            keep(bench, "gemm", samples, floors, product=name, dtype=form, m=m, n=n, k=k, **rates)


def measure_memory(bench: Bench) -> None:
    big, device = 128 << 20 if bench.on_cpu else 2 << 30, bench.device
    source = torch.randint(-(2**31), 2**31 - 1, (big // 4,), device=device, dtype=torch.int32)
    target = torch.empty_like(source)
    rows = {"copy": (2 * big, [lambda: target.copy_(source)])}
    rows["read"] = big, [lambda: torch.amax(source)]
    for width in (264, 288, 528, 10240):  # engram row, main KV row, window row, hidden row in bf16
        table = source.view(torch.int64)[: big // width * (width // 8)].view(-1, width // 8)
        count = 1 << (18 if width < 1024 else 14) - (4 if bench.on_cpu else 0)
        picks = [torch.randint(0, len(table), (count,), device=device) for _ in range(4)]
        calls = [lambda t=table, i=i: t.index_select(0, i) for i in picks]
        rows[f"gather_{width}"] = 2 * width * len(picks[0]), calls
    for name, (moved, calls) in rows.items():
        # a graph's copy node is slower than the same copy outside
        samples = sample_us(bench, calls, graph=name != "copy")
        _keep_moved(bench, name, samples, moved, "memory", bench.bandwidth)
    if bench.on_cpu:
        return
    pinned = torch.randint(0, 2**31 - 1, (64 << 20,), dtype=torch.int32).pin_memory()
    part = target[: len(pinned)]
    for name, call in {
        "host_to_device": lambda: part.copy_(pinned, non_blocking=True),
        "device_to_host": lambda: pinned.copy_(part, non_blocking=True),
    }.items():
        _keep_moved(bench, name, sample_us(bench, [call], graph=False), pinned.nbytes, "link", bench.links["host"])


def _keep_moved(
    bench: Bench, what: str, samples: np.ndarray, moved: int, bound: str, peak: float, **values: Any
) -> None:
    rate = {"moved_bytes": moved, "gbytes_per_s": round(moved / np.median(samples) / 1e3, 2)}
    keep(bench, what, samples, {bound: moved / peak}, **values, **rate)


def measure_launch(bench: Bench) -> None:
    """A tiny operation: from the host one after another, waiting for each, and replayed from a graph."""
    x = torch.ones(1, device=bench.device)
    calls: list[Call] = [lambda: x.add_(1)] * 1000
    wait: Call = (lambda: None) if bench.on_cpu else torch.cuda.synchronize
    both: list[Call] = [lambda: (x.add_(1), wait())] * 50
    keep(bench, "launch_eager", np.array([_clock_us([*calls, wait]) for _ in range(bench.runs)]), {})
    keep(bench, "launch_and_wait", np.array([_clock_us(both) for _ in range(bench.runs)]), {})
    if not bench.on_cpu:
        keep(bench, "launch_graph", sample_us(bench, calls), {})


def measure_collectives(bench: Bench) -> None:
    world = 0 if bench.on_cpu else torch.cuda.device_count()
    if world < 2:
        print("skipped collectives: they need two GPUs", flush=True)
        return
    torch.multiprocessing.spawn(_collectives, (world, bench), nprocs=world)


def _collectives(rank: int, world: int, bench: Bench) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:29517", rank=rank, world_size=world, device_id=torch.device("cuda", rank)
    )
    for size in MESSAGES:
        for name, call, times in _exchanges(size, world):
            samples = sample_us(bench, [call] * (20 if size < 1 << 24 else 4))
            if rank == 0:
                sent = times * size * (world - 1) // world
                values = {"ranks": world, "message_bytes": size}
                _keep_moved(bench, name, samples, sent, "link", bench.links["nvlink"], **values)
    dist.destroy_process_group()


def _exchanges(size: int, world: int) -> list[tuple[str, Call, int]]:
    """Name, call, and the bytes that leave a rank as a multiple of size × (world - 1) / world."""
    x = torch.randint(0, 255, (size,), device="cuda", dtype=torch.uint8)
    y, part, half = torch.empty_like(x), x[: size // world].clone(), x.view(torch.bfloat16)
    return [
        ("all_to_all", lambda: dist.all_to_all_single(y, x), 1),
        ("all_gather", lambda: dist.all_gather_into_tensor(y, part), 1),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(part.view(torch.bfloat16), half), 1),
        ("all_reduce", lambda: dist.all_reduce(half), 2),
    ]


MEASURES = dict(gemm=measure_gemm, memory=measure_memory, launch=measure_launch, collectives=measure_collectives)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--chip", help="file name in conf/hardware; default: the one that the device's name contains")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    words = ["cpu"] if args.device == "cpu" else torch.cuda.get_device_name().lower().split()
    chip = args.chip or next((word for word in words if (CONF / f"{word}.yaml").is_file()), None)
    if chip is None:
        parser.error(f"no file of conf/hardware is called like {' '.join(words)}; give --chip")
    architecture = "cpu" if args.device == "cpu" else "sm{}{}".format(*torch.cuda.get_device_capability())
    if wrong := another_chip(chip, args.device, words, architecture):
        parser.error(wrong)
    for name in args.only:
        MEASURES[name](Bench(chip, args.device, args.runs))


if __name__ == "__main__":
    main()
