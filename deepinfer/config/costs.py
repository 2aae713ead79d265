"""How times are reckoned: from data sheets alone, or with what was measured."""

from deepinfer.config.leaves import Component


class Cost(Component, frozen=True, kw_only=True):
    """How the times of a plan are reckoned."""


class RooflineCost(Cost, frozen=True, kw_only=True, tag="roofline"):
    """Peaks of the data sheet: no real engine is this fast."""
