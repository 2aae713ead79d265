"""What was looked up for a plan's cost: lines of a measurement, or tables of kernels, where `cost` asks for them."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from deepinfer.config.ceiling_lines import Line, read_ceilings
from deepinfer.config.chips import Chip
from deepinfer.config.costs import AiconfiguratorCost, Cost, MeasuredCost
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.kernel_tables import KernelRates, TableFiles, known_systems, rates_from

SYSTEMS = {  # by words of a chip's name, the longer ones first
    "GB300": "gb300",
    "GB200": "gb200",
    "B300": "b300_sxm",
    "B200": "b200_sxm",
    "H200": "h200_sxm",
    "H100": "h100_sxm",
}


class CostFacts(Struct, frozen=True, kw_only=True):
    """What files say that `cost` reads. `problems` are for the plan to raise, beside all others."""

    ceilings: tuple[Line, ...] = ()
    measured_chips: dict[str, str] = {}  # names in those lines → names of chips, by conf/hardware
    systems: tuple[str, ...] = ()  # that there are kernel tables of
    rates: dict[str, KernelRates] = {}  # of the systems of this plan's chips
    problems: tuple[Problem, ...] = ()


def probe_cost(cost: Cost, chips: Iterable[Chip], chip_names: Callable[[], Mapping[str, str]]) -> CostFacts:
    """Read what `cost` names; nothing for options that need no file. `chip_names()`: option of conf/hardware → chip."""
    try:
        if isinstance(cost, MeasuredCost):
            lines = read_ceilings(cost.path)
            names, used = chip_names(), {line.chip for line in lines}
            return CostFacts(ceilings=lines, measured_chips={name: names[name] for name in names if name in used})
        if isinstance(cost, AiconfiguratorCost):
            known = known_systems()
            wanted = {system_of(chip, cost.system) for chip in chips} & set(known)
            rates = {system: rates_from(TableFiles(system, cost.backend)) for system in sorted(wanted)}
            return CostFacts(systems=known, rates=rates)
    except Refused as refused:
        return CostFacts(problems=refused.problems)
    return CostFacts()


def system_of(chip: Chip, asked: str = "auto") -> str:
    """The folder of tables for a chip; empty where none is known."""
    if asked != "auto":
        return asked
    return next((system for word, system in SYSTEMS.items() if word in chip.name.upper()), "")
