"""How long a step takes on a chip: the roofline, or with the shares of it that a calibration grants.

Roofline: compute, memory traffic and links overlap perfectly, so a step takes the longest of
Σ over dtypes of FLOPs ÷ peak, bytes ÷ bandwidth, and the busiest link's bytes ÷ its speed.
"""

from deepinfer.config.chips import Chip
from deepinfer.plan.cost.kernel_steps import launched
from deepinfer.plan.cost.types import Calibration, PartTime, PartWork, StepTime, Work

ROOFLINE = Calibration()
WIDER = ("f4_e2m1", "f8_e4m3", "bf16", "tf32", "f32", "f64")
SPLIT_PRODUCTS = 3  # of narrower numbers, which together are as good as one of the next wider kind
KINDS = ("weights", "cache", "tables")


def computed_in(chip: Chip, dtype: str) -> tuple[str, float]:
    """The dtype that stands in for `dtype` on this chip, and its FLOP/s at work of `dtype`.

    Without a peak of its own a product runs at the next wider dtype that has one; where none is wider, as several
    products of the widest there is. ("", inf) for a chip that names no peak at all.
    """
    peaks = {name: fact.value for name, fact in chip.peak_flops_by_dtype.items()}
    order = WIDER[WIDER.index(dtype) :] if dtype in WIDER else (dtype,)
    for name in order:
        if name in peaks:
            return name, peaks[name]
    known = [name for name in WIDER if name in peaks]
    return (known[-1], peaks[known[-1]] / SPLIT_PRODUCTS) if known else ("", float("inf"))


def step_time(work: Work, chip: Chip, calibration: Calibration = ROOFLINE, *, sharers: int = 1) -> StepTime:
    """The time of `work` on one of `sharers` ranks that divide the chip between them."""
    dtypes = {dtype for part in work.parts for dtype in part.flops}
    computed = {dtype: computed_in(chip, dtype) for dtype in dtypes}
    if calibration.kernels:
        named = {
            part.part: computed[max(part.flops, key=part.flops.__getitem__)][0] for part in work.parts if part.flops
        }
        kernels = launched(work, chip, calibration, named)
        parts, compute_s, body, latency_s = kernels.parts, kernels.compute_s, kernels.body_s, kernels.latency_s
    else:
        compute_s = {}
        parts = tuple(_part_time(part, chip, computed, calibration, sharers, compute_s) for part in work.parts)
        body, latency_s = _body(parts, compute_s, calibration), 0.0
    memory_s = sum(part.memory_s for part in parts)
    links_s, exchanges_s = link_times(work, calibration)
    outside = max(links_s.values(), default=0.0)
    latency_s += calibration.layer_latency_s * work.layers + exchanges_s
    exposed = links_s if outside > body else {}  # links that pass behind the parts hold nothing up
    holders = {f"link {name}": seconds for name, seconds in exposed.items()} | {
        "latency": latency_s,
        "memory": memory_s,
    }
    holders |= _longest(compute_s)
    bound = max(holders, key=holders.__getitem__)
    return StepTime(
        time_s=(max(body, outside) + latency_s) / calibration.system_share,  # links hide behind the parts
        body_s=body,
        compute_s=compute_s,
        memory_s=memory_s,
        links_s=links_s,
        latency_s=latency_s,
        system_share=calibration.system_share,
        parts=parts,
        bound=bound,
        bound_part=_bound_part(bound, parts),
        label=calibration.label,
    )


def link_times(work: Work, calibration: Calibration) -> tuple[dict[str, float], float]:
    """Seconds of the step's bytes by link, and of what all its exchanges take however short they are."""
    found: dict[str, float] = {}
    for link in work.links:
        share = calibration.link_share.get(link.link, calibration.default_link_share)
        found[link.link] = found.get(link.link, 0.0) + link.num_bytes / (link.bytes_per_s * share)
    return found, calibration.collective_latency_s * sum(link.calls for link in work.links)


def _body(parts: tuple[PartTime, ...], compute_s: dict[str, float], calibration: Calibration) -> float:
    if calibration.parts_overlap:
        return max(sum(compute_s.values()), sum(part.memory_s for part in parts))
    return sum(max(part.compute_s, part.memory_s) for part in parts)


def _longest(compute_s: dict[str, float]) -> dict[str, float]:
    """All computation as one holder, named after the dtype that takes most of it."""
    if not compute_s:
        return {}
    return {f"compute {max(compute_s, key=compute_s.__getitem__)}": sum(compute_s.values())}


def _bound_part(bound: str, parts: tuple[PartTime, ...]) -> str:
    if bound == "memory":
        return max(parts, key=lambda part: part.memory_s).part
    if bound.startswith("compute"):
        return max(parts, key=lambda part: part.compute_s).part
    return ""


def _part_time(
    part: PartWork,
    chip: Chip,
    computed: dict[str, tuple[str, float]],
    calibration: Calibration,
    sharers: int,
    compute_s: dict[str, float],
) -> PartTime:
    """The times of one part, which are added to `compute_s` as well; `computed` is `computed_in` of every dtype."""
    shares, total_s = calibration.flops_share, 0.0
    for dtype, flops in part.flops.items():
        name, peak = computed[dtype]
        share = shares.get(f"{part.part}/{name}", shares.get(name, calibration.default_flops_share))
        seconds = flops * sharers / (peak * share)
        compute_s[name] = compute_s.get(name, 0.0) + seconds
        total_s += seconds
    bandwidth = chip.memory_bandwidth_bytes_per_s.value / sharers
    kinds = (*KINDS, "streams") if calibration.counts_streams else KINDS
    memory_s = sum(
        moved / (bandwidth * _bandwidth_share(part.part, kind, calibration))
        for kind in kinds
        if (moved := part.bytes_of(kind))
    )
    return PartTime(part=part.part, compute_s=total_s, memory_s=memory_s)


def _bandwidth_share(part: str, kind: str, calibration: Calibration) -> float:
    shares = calibration.bandwidth_share
    return shares.get(f"{part}/{kind}", shares.get(kind, calibration.default_bandwidth_share))
