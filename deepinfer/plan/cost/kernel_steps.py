"""A step as the sum of its launches, each timed by the figures of its kernel."""

from msgspec import Struct, structs

from deepinfer.config.chips import Chip
from deepinfer.plan.cost.tile_waves import Tiled, waves_of
from deepinfer.plan.cost.types import Calibration, LaunchWork, PartTime, Work

EXACT = "bf16"  # in which products of FP8 and FP4 numbers are exact


class Launched(Struct, frozen=True, kw_only=True):
    """Seconds of all launches: what they compute and read, memory and computation of a launch together; and what each takes
    however little it does."""

    parts: tuple[PartTime, ...]
    compute_s: dict[str, float]  # by dtype
    body_s: float
    latency_s: float


def launched(work: Work, chip: Chip, calibration: Calibration, dtypes: dict[str, str]) -> Launched:
    """`dtypes`: part → the number format in which it computes, for the record.

    A chip with other figures than the data sheet of the one that was timed is that much faster or slower.
    """
    calibration = on_chip(chip, calibration)
    parts: dict[str, list[float]] = {part.part: [0.0, 0.0] for part in work.parts}
    compute_s: dict[str, float] = {}
    body_s = latency_s = 0.0
    for launch in work.launches:
        compute, memory, body, latency = _seconds(launch, calibration)
        body_s, latency_s = body_s + body, latency_s + latency
        sums = parts[launch.part]
        sums[0], sums[1] = sums[0] + compute, sums[1] + memory
        if compute:
            dtype = dtypes.get(launch.part, "")
            compute_s[dtype] = compute_s.get(dtype, 0.0) + compute
    times = tuple(PartTime(part=name, compute_s=sums[0], memory_s=sums[1]) for name, sums in parts.items())
    return Launched(parts=times, compute_s=compute_s, body_s=body_s, latency_s=latency_s)


def on_chip(chip: Chip, calibration: Calibration) -> Calibration:
    """The calibration with its kernels on `chip`."""
    memory = chip.memory_bandwidth_bytes_per_s.value / calibration.sheet_bytes_per_s
    peak = chip.peak_flops_by_dtype.get(EXACT)
    compute = 1.0 if peak is None else peak.value / calibration.sheet_flops_per_s
    kernels = {name: time.on(memory, compute) for name, time in calibration.kernels.items()}
    return structs.replace(calibration, kernels=kernels, sheet_bytes_per_s=1.0, sheet_flops_per_s=1.0)


def launch_seconds(launch: LaunchWork, calibration: Calibration) -> float:
    """Of all calls together."""
    _, _, body, latency = _seconds(launch, calibration)
    return body + latency


def _seconds(launch: LaunchWork, calibration: Calibration) -> tuple[float, float, float, float]:
    """Computation, memory, both together, and latency, of all calls."""
    kernel, processors = calibration.kernels[launch.op], calibration.multiprocessors
    product = Tiled(launch.rows, launch.outputs, launch.length, launch.ragged)
    compute_s = kernel.compute_s(launch.flops, waves_of(product, kernel, processors))
    memory_s = kernel.memory_s(launch.num_bytes, launch.calls)
    latency_s = kernel.latency_s(launch.length, kernel.turns(launch.rows, processors))
    return compute_s, memory_s, kernel.together_s(memory_s, compute_s), launch.calls * latency_s
