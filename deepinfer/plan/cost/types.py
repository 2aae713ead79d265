"""What the cost of a plan consists of. Every figure says how it was come by."""

from typing import Literal

from deepinfer.plan.frozen import Frozen

Label = Literal["roofline", "calibrated", "measured"]


class Figure(Frozen, frozen=True, kw_only=True):
    """One number for people and for sweeps. Seconds, tokens, bytes or FLOPs, as `unit` says."""

    name: str
    value: float
    unit: str
    label: Label


class CostPlan(Frozen, frozen=True, kw_only=True):
    """What a plan costs. `headline` holds the figures that sweeps, tuning and comparisons read by name."""

    headline: tuple[Figure, ...] = ()

    def figure(self, name: str) -> Figure:
        """The headline called `name`; KeyError where this plan has none."""
        for figure in self.headline:
            if figure.name == name:
                return figure
        raise KeyError(name)
