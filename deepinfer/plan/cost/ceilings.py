"""A calibration from what benchmarks/ceilings.py measured on a device of the same chip."""

import statistics
from collections.abc import Sequence

from deepinfer.config.ceiling_lines import Line, refused
from deepinfer.config.chips import Chip
from deepinfer.config.cost_facts import CostFacts
from deepinfer.config.costs import MeasuredCost
from deepinfer.config.errors import listed
from deepinfer.plan.cost.types import Calibration

BANDWIDTHS = {"cache": "read", "streams": "copy", "tables": "gather_264"}


def calibration_from_ceilings(cost: MeasuredCost, chip: Chip, option: str, found: CostFacts) -> Calibration:
    """Shares by the medians of the lines that were measured on `chip`, an `option` of conf/hardware.

    Raises Refused where there are none. Ceilings say nothing about latencies between kernels: none is assumed.
    """
    lines = _for_chip(cost, chip, option, found)
    exchanged = [line for line in lines if line.what == "all_to_all" and line.share]
    flops, bandwidth, links = _products(lines), _bandwidths(lines), _links(lines, exchanged)
    device = f"{lines[0].device or chip.name}, {lines[0].measured_at[:10]}".removesuffix(", ")
    return Calibration(
        name=f"ceilings of {device}",
        label="calibrated",
        source=f"ceilings measured on {device} ({cost.path}); no latencies, engine share {cost.system_share:.0%}",
        flops_share=flops,
        default_flops_share=min(flops.values(), default=1.0),
        bandwidth_share=bandwidth,
        default_bandwidth_share=bandwidth.get("cache", min(bandwidth.values(), default=1.0)),
        link_share=links,
        default_link_share=min(links.values(), default=1.0),
        parts_overlap=False,
        counts_streams=True,
        collective_latency_s=min((line.median_us for line in exchanged), default=0.0) / 1e6,
        system_share=cost.system_share,
    )


def _for_chip(cost: MeasuredCost, chip: Chip, option: str, found: CostFacts) -> list[Line]:
    """The lines of this kind of chip: measured under its option, under another of the same chip, or on its very name."""

    def is_mine(line: Line) -> bool:
        return line.chip == option != "" or chip.name in (found.measured_chips.get(line.chip), line.device)

    mine = [line for line in found.ceilings if is_mine(line)]
    if not mine:
        chips = listed(sorted({line.chip for line in found.ceilings}))
        why = f"the plan is for {chip.name}; measure with --chip as hardware is called here"
        raise refused(f"cost.path={cost.path}", f"it was measured on {chips}", why, "cost=calibrated")
    return mine


def _products(lines: Sequence[Line]) -> dict[str, float]:
    """Shares of products that computation holds up, by dtype; of several scalings of FP8 the finest."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line.what == "gemm" and line.bound == "compute" and line.share:
            found.setdefault(line.dtype, []).append(line.share)
    shares = {form: min(1.0, statistics.median(values)) for form, values in found.items()}
    plain = {form.partition("/")[0]: share for form, share in shares.items() if not form.endswith("/block128")}
    return plain | {form.partition("/")[0]: share for form, share in shares.items() if form.endswith("/block128")}


def _bandwidths(lines: Sequence[Line]) -> dict[str, float]:
    """Shares of the memory bandwidth; that of weights from products that memory holds up."""
    shares = [line.share for line in lines if line.what == "gemm" and line.bound == "memory" and line.share]
    found = {"weights": min(1.0, statistics.median(shares))} if shares else {}
    return found | {kind: share for kind, what in BANDWIDTHS.items() if (share := _median(lines, what)) is not None}


def _links(lines: Sequence[Line], exchanged: Sequence[Line]) -> dict[str, float]:
    host = _median(lines, "host_to_device")
    found = {} if host is None else {"host": host}
    largest = max(exchanged, key=lambda line: line.message_bytes, default=None)
    return found | ({"nvlink": min(1.0, largest.share)} if largest and largest.share else {})


def _median(lines: Sequence[Line], what: str) -> float | None:
    shares = [line.share for line in lines if line.what == what and line.share]
    return min(1.0, statistics.median(shares)) if shares else None
