"""Tuning recipes: which options and values to search, and for what."""

from deepinfer.config.leaves import Component


class Sweep(Component, frozen=True, kw_only=True):
    """A tuning recipe."""


class NoSweep(Sweep, frozen=True, kw_only=True, tag="none"):
    pass
