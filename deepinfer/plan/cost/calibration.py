"""The calibration that a `cost` option stands for, for one chip. See docs/costs.md for where its figures come from."""

from collections.abc import Mapping
from typing import Any

from deepinfer.config.chips import Chip, Fact
from deepinfer.config.cost_facts import CostFacts
from deepinfer.config.costs import AiconfiguratorCost, CalibratedCost, Cost, MeasuredCost, RooflineCost
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.plan.cost.ceilings import calibration_from_ceilings
from deepinfer.plan.cost.tables import layer_latency_s, rates_for, shares_of
from deepinfer.plan.cost.timing import ROOFLINE
from deepinfer.plan.cost.types import Calibration


def calibration_of(cost: Cost, chip: Chip, found: CostFacts | None = None, option: str = "") -> Calibration:
    """How steps on `chip`, an `option` of conf/hardware, are timed under `cost`; `found` is what was read for it.

    Raises Refused where the option cannot answer for this chip: no lines, no table, no such architecture.
    """
    found = found or CostFacts()
    match cost:
        case RooflineCost():
            return ROOFLINE
        case CalibratedCost():
            return _from_shares(cost, chip)
        case MeasuredCost():
            return calibration_from_ceilings(cost, chip, option, found)
        case AiconfiguratorCost():
            return _from_tables(cost, chip, found)
    raise Refused([Problem(asked=f"cost={cost.kind}", found="nothing here reckons with it", code=ExitCode.PLAN)])


def _from_shares(cost: CalibratedCost, chip: Chip) -> Calibration:
    own = chip.architecture.value
    used = own if own in cost.architectures else cost.stand_in
    if cost.stand_in not in cost.architectures:  # where the chip has shares of its own, too: it was asked for
        known = listed(sorted(cost.architectures))
        problem = Problem(
            asked=f"cost.stand_in={cost.stand_in}",
            found=f"cost.architectures has {known}",
            why="it names the architecture whose shares stand in for others",
            fix=f"cost.stand_in={sorted(cost.architectures)[0]}" if cost.architectures else "cost=roofline",
            code=ExitCode.PLAN,
        )
        raise Refused([problem])
    shares = cost.architectures[used]
    applied = f"calibration of {used}" if used == own else f"calibration of {used} applied to {own}"
    flops, bandwidth, links = _values(shares.flops), _values(shares.bandwidth), _values(shares.links)
    system_share = 1.0 if shares.whole_steps else cost.system_share.value
    return Calibration(
        name=applied,
        label="calibrated",
        source=f"{applied}; {_engine(None if shares.whole_steps else system_share)}",
        stand_in="" if used == own else used,
        layer_latency_s=shares.layer_latency_s.value,
        collective_latency_s=shares.collective_latency_s.value,
        system_share=system_share,
        **_parts(flops, bandwidth, links),
    )


def _from_tables(cost: AiconfiguratorCost, chip: Chip, found: CostFacts) -> Calibration:
    system, rates = rates_for(chip, cost.system, found)
    shares = shares_of(rates, chip)
    if not shares["flops"] or not shares["bandwidth"]:
        problem = Problem(
            asked=f"cost.backend={cost.backend}",
            found=f"the tables of {system} have no products of that backend",
            fix="cost.backend=sglang",
            code=ExitCode.PLAN,
        )
        raise Refused([problem])
    applied = f"aiconfigurator-core's tables of {system}, {cost.backend}"
    return Calibration(
        name=applied,
        label="calibrated",
        source=f"{applied}; {_engine(cost.system_share)}",
        layer_latency_s=layer_latency_s(rates) or 0.0,
        collective_latency_s=rates.collective_latency_s or 0.0,
        system_share=cost.system_share,
        **_parts(shares["flops"], shares["bandwidth"], shares["links"]),
    )


def _values(facts: Mapping[str, Fact[float]]) -> dict[str, float]:
    return {key: fact.value for key, fact in facts.items()}


def _parts(flops: dict[str, float], bandwidth: dict[str, float], links: dict[str, float]) -> dict[str, Any]:
    """What all calibrations have in common. Keys that nobody measured take the lowest plain share of their kind."""
    return {
        "flops_share": flops,
        "default_flops_share": _lowest(flops),
        "bandwidth_share": bandwidth,
        "default_bandwidth_share": _lowest(bandwidth),
        "link_share": links,
        "default_link_share": min(links.values(), default=1.0),
        "parts_overlap": False,
        "counts_streams": True,
    }


def _lowest(shares: Mapping[str, float]) -> float:
    plain = [share for key, share in shares.items() if "/" not in key]
    return min(plain or shares.values(), default=1.0)


def _engine(share: float | None) -> str:
    engine = "measured on whole steps" if share is None else f"an engine makes {share:.1%} of its kernels"
    return f"parts of a step follow each other, links are hidden behind them, {engine}"
