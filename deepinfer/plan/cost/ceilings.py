"""A calibration from what benchmarks/ceilings.py measured on a device of the same chip."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from deepinfer.config.chips import Chip
from deepinfer.config.costs import MeasuredCost
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.plan.cost.types import Calibration

MEASURE = "python benchmarks/ceilings.py --record"
FIGURE = "ceilings"
BANDWIDTHS = {"cache": "read", "streams": "copy", "tables": "gather_264"}


class Named(Struct):
    """Any line of a benchmark."""

    figure: str = ""


class Line(Struct):
    """What counts of a line: the kind of measurement, and the share of the data sheet that it reached."""

    chip: str
    what: str
    share: Annotated[float, Meta(gt=0)] | None = None
    bound: str = ""
    dtype: str = ""
    message_bytes: int = 0
    median_us: Annotated[float, Meta(ge=0)] = 0.0
    device: str = ""
    measured_at: str = ""


def calibration_from_ceilings(cost: MeasuredCost, chip: Chip) -> Calibration:
    """Shares by the medians of the lines in `cost.path`. Raises Refused where there are none for this chip.

    Ceilings say nothing about latencies between kernels: none is assumed.
    """
    if cost.path is None:
        raise _refused("cost.path", "nothing given", "the file that your measurement wrote", "cost.path=ceilings.jsonl")
    lines = _for_chip(_read(cost.path), chip, cost.path)
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


def _for_chip(lines: Sequence[Line], chip: Chip, path: str) -> list[Line]:
    """The lines that were measured on this kind of chip: by the name of its file in conf/hardware."""
    if not lines:
        raise _refused(f"cost.path={path}", "no line of it is a ceiling", f"{MEASURE} writes them", "")
    words = chip.name.lower().split()
    mine = [line for line in lines if line.chip.lower() in (*words, "".join(words))]
    if not mine:
        chips = listed(sorted({line.chip for line in lines}))
        why = f"the plan is for {chip.name}; measure with --chip as hardware is called here"
        raise _refused(f"cost.path={path}", f"it was measured on {chips}", why, "cost=calibrated")
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


def _read(path: str) -> list[Line]:
    """The ceilings among the JSON lines of a file."""
    try:
        texts = Path(path).expanduser().read_bytes().splitlines()
    except OSError as error:
        raise _refused(f"cost.path={path}", f"it cannot be read: {error.strerror}", "", MEASURE) from error
    found = [_line(text, f"{path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    return [line for line in found if line is not None]


def _line(text: bytes, where: str) -> Line | None:
    """The ceiling of one line; None for another figure's."""
    try:
        is_ceiling = msgspec.json.decode(text, type=Named).figure == FIGURE
        return msgspec.json.decode(text, type=Line) if is_ceiling else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refused(f"cost.path={where}", f"it is no line of a benchmark: {error}", "", MEASURE) from error


def _refused(asked: str, found: str, why: str, fix: str) -> Refused:
    return Refused([Problem(asked=asked, found=found, why=why, fix=fix, code=ExitCode.PLAN)])
