"""What a step of one rank must take at least on its chip, and what the links of its group would add by the cost model.

A floor is summed over the parts of a step: of each the longer of its operations and its bytes, at rates that were measured
where there are any. Activations between a part's operations are not counted, so that no implementation is below it.
"""

from collections.abc import Mapping

from msgspec import structs

from deepinfer.config.chips import Chip
from deepinfer.plan.cost.timing import computed_in, link_times
from deepinfer.plan.cost.types import Calibration, Work
from deepinfer.plan.frozen import Frozen

FP8, BF16 = "f8_e4m3", "bf16"
EXPERTS = ("experts", "draft_experts")


class Rates(Frozen, frozen=True, kw_only=True):
    """FLOP/s by dtype and bytes/s, read and written together."""

    flops: dict[str, float]
    bytes_per_s: float
    source: str


MEASURED = {  # option of conf/hardware → what benchmarks/device_timer.py holds kernels against
    "h200": Rates(
        flops={FP8: 1390e12, BF16: 790e12, "tf32": 395e12},
        bytes_per_s=4.25e12,
        source="measured on an H200: products of 8,192³ in FP8 and bf16, a device-to-device copy",
    )
}


class Floor(Frozen, frozen=True, kw_only=True):
    """Milliseconds by part. `ms` multiplies FP8 weights in bf16, which alone is exact here; `fp8_ms` at the FP8 peak."""

    parts_ms: dict[str, float]
    ms: float
    fp8_ms: float


class Exchange(Frozen, frozen=True, kw_only=True):
    """Modelled: milliseconds that the links of the group are busy in a step, one after the other, and their latencies."""

    by_link_ms: dict[str, float]
    latency_ms: float

    @property
    def ms(self) -> float:
        return sum(self.by_link_ms.values()) + self.latency_ms


def rates_of(chip: Chip, option: str) -> Rates:
    """Measured ones, or else the data sheet's."""
    if option in MEASURED:
        return MEASURED[option]
    flops = {dtype: fact.value for dtype, fact in chip.peak_flops_by_dtype.items()}
    return Rates(flops=flops, bytes_per_s=chip.memory_bandwidth_bytes_per_s.value, source="data sheet")


def floor_of(work: Work, chip: Chip, rates: Rates, load: float = 1.0, held: Mapping[str, float] | None = None) -> Floor:
    """`load`: what the experts compute over what the work says; `held`: weight bytes by part, where they are known better."""
    exact = structs.replace(rates, flops=rates.flops | {FP8: rates.flops.get(BF16, 0.0) or rates.flops.get("f32", 0.0)})
    parts, fast = (_parts(work, chip, at, load, held or {}) for at in (exact, rates))
    return Floor(
        parts_ms={part: 1e3 * seconds for part, seconds in parts.items()},
        ms=1e3 * sum(parts.values()),
        fp8_ms=1e3 * sum(fast.values()),
    )


def _parts(work: Work, chip: Chip, rates: Rates, load: float, held: Mapping[str, float]) -> dict[str, float]:
    found = {}
    for part in work.parts:
        busier = load if part.part in EXPERTS else 1.0
        compute = sum(busier * flops / _peak(dtype, chip, rates) for dtype, flops in part.flops.items())
        memory = held.get(part.part, part.bytes_of("weights"))
        memory += part.bytes_of("cache") + part.bytes_of("tables") + part.bytes_of("streams")
        found[part.part] = max(compute, memory / rates.bytes_per_s)
    return found


def _peak(dtype: str, chip: Chip, rates: Rates) -> float:
    """Of a dtype that the chip lacks: that which stands in for it."""
    name, sheet = computed_in(chip, dtype)
    return rates.flops.get(dtype, rates.flops.get(name, sheet))


def exchange_of(work: Work, calibration: Calibration) -> Exchange:
    """What dispatch, combine and n-gram rows of a step take on the group's links."""
    links_s, latency_s = link_times(work, calibration)
    return Exchange(by_link_ms={name: 1e3 * seconds for name, seconds in links_s.items()}, latency_ms=1e3 * latency_s)
