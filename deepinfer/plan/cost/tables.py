"""A calibration from rates that were read off measured tables of kernels: shares of a chip's own figures."""

from deepinfer.config.chips import Chip
from deepinfer.config.cost_facts import CostFacts, system_of
from deepinfer.config.errors import ExitCode, Problem, Refused, listed, nearest
from deepinfer.config.kernel_readings import Kind
from deepinfer.config.kernel_tables import KernelRates
from deepinfer.plan.cost.timing import computed_in


def rates_for(chip: Chip, asked: str, found: CostFacts) -> tuple[str, KernelRates]:
    """The system of a chip and its rates; Refused where there are no tables of it."""
    system = system_of(chip, asked)
    if system in found.rates:
        return system, found.rates[system]
    near = nearest(asked, found.systems) if asked != "auto" else None
    problem = Problem(
        asked=f"cost=aiconfigurator for {chip.name}" if asked == "auto" else f"cost.system={asked}",
        found=f"there are tables of {listed(found.systems)}",
        fix="cost=calibrated" if asked == "auto" else f"cost.system={near}" if near else "",
        code=ExitCode.PLAN,
    )
    raise Refused([problem])


def shares_of(rates: KernelRates, chip: Chip) -> dict[Kind, dict[str, float]]:
    """Every share that the rates tell, by kind and key; a figure that the chip does not name has none."""
    index, _ = computed_in(chip, "f4_e2m1")
    flops = {key.format(index=index): rate for key, rate in rates.flops_per_s.items()}
    peaks = {dtype: fact.value for dtype, fact in chip.peak_flops_by_dtype.items()}
    bandwidth = chip.memory_bandwidth_bytes_per_s.value
    return {
        "flops": {
            key: min(1.0, rate / peaks[dtype])
            for key, rate in flops.items()
            if (dtype := key.rpartition("/")[2]) in peaks
        },
        "bandwidth": {key: min(1.0, rate / bandwidth) for key, rate in rates.bandwidth_bytes_per_s.items()},
        "links": {
            name: min(1.0, rate / chip.links[name].value)
            for name, rate in rates.links_bytes_per_s.items()
            if name in chip.links
        },
    }


def layer_latency_s(rates: KernelRates) -> float | None:
    """What a layer takes beyond reading its weights: V4-Flash's three modules at one row, less that time."""
    reached = rates.bandwidth_bytes_per_s
    if rates.latency_s is None or not rates.read_bytes.keys() <= reached.keys():
        return None
    return max(0.0, rates.latency_s - sum(size / reached[key] for key, size in rates.read_bytes.items()))
