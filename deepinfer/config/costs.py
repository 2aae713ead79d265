"""How times are reckoned: from data sheets alone, or with what was measured."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from deepinfer.config.chips import Fact
from deepinfer.config.leaves import BytesPerSecond, Component, Count, FlopsPerSecond, Positive, Seconds, Text

PartOf = Annotated[float, Meta(gt=0, le=1)]


class Cost(Component, frozen=True, kw_only=True):
    """How the times of a plan are reckoned."""


class RooflineCost(Cost, frozen=True, kw_only=True, tag="roofline"):
    """Peaks of the data sheet: no real engine is this fast."""


class Shares(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kernels on chips of one architecture reach, as parts of that chip's own figures."""

    flops: dict[str, Fact[PartOf]]  # by dtype, or part/dtype
    bandwidth: dict[str, Fact[PartOf]]  # by weights, cache, tables, streams, or part/weights …
    links: dict[str, Fact[PartOf]]  # by name
    layer_latency_s: Fact[Seconds]  # that a layer takes whatever it computes
    collective_latency_s: Fact[Seconds]  # of one exchange, however short
    whole_steps: bool  # measured on an engine's steps rather than on kernels: no system share is taken off again


class KernelFigures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long one of our kernels takes; the formula is in plan/cost/kernel_time.py."""

    fixed_s: Seconds
    bytes_per_s: BytesPerSecond
    flops_per_s: FlopsPerSecond | None = None  # null: it computes next to nothing
    power: float = 1.0
    length_s: Seconds = 0.0
    exponent: float = 1.0
    resident: Count = 0  # rows of a multiprocessor at a time; 0: all
    cached: float = 1.0  # times as fast as from memory, of rows in the second-level cache
    tile: Positive = 128  # outputs; this and the rest are a product's, see plan/cost/tile_waves.py
    parts: Positive = 1
    start: float = 0.0  # columns
    extra_rows: float = 0.0


class OwnKernels(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Our own kernels on one chip, timed one by one; a step is the sum of its launches."""

    device: Text
    chip: Text  # the name of its data sheet in conf/hardware
    source: Text  # file and commit
    date: Text
    sheet_bytes_per_s: BytesPerSecond  # of the chip when they were timed; other figures of it scale them
    sheet_flops_per_s: FlopsPerSecond  # in bf16
    multiprocessors: Positive
    hidden_size: Positive  # of the model whose widths they were timed at
    layer_latency_s: Fact[Seconds]  # what torch's own small operations between kernels take in a layer
    kernels: dict[str, KernelFigures]


class CalibratedCost(Cost, frozen=True, kw_only=True, tag="calibrated"):
    """Shares of the data sheet that public tables and our own measurements show, by architecture."""

    system_share: Fact[PartOf]  # what an engine makes of its kernels: the one value that is fitted to published figures
    stand_in: Text  # architecture whose shares the others take
    architectures: dict[str, Shares]  # architecture → shares, each with its source; see docs/costs.md
    own_kernels: dict[str, OwnKernels]  # by chip; used where all ops of a plan are ours and the model has their widths


class MeasuredCost(Cost, frozen=True, kw_only=True, tag="measured"):
    """Shares that benchmarks/ceilings.py found on a device of the same chip."""

    path: Text | None  # the JSON lines it wrote
    system_share: PartOf  # what an engine makes of its kernels


class AiconfiguratorCost(Cost, frozen=True, kw_only=True, tag="aiconfigurator"):
    """Shares reckoned on the spot from the tables of NVIDIA's aiconfigurator-core, an optional package."""

    system: Text  # auto: the one of the plan's chip
    backend: Literal["sglang", "vllm", "trtllm"]  # whose kernels
    system_share: PartOf  # what an engine makes of its kernels
