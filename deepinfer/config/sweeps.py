"""Tuning recipes: which options and values to search, and for what."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from deepinfer.config.leaves import Component, Positive, Seconds

Number = Annotated[float, Meta(extra={"unit": "count"})]


class Sweep(Component, frozen=True, kw_only=True):
    """A tuning recipe, and how runs of several points behave."""

    stop_on_failure: bool  # after a point that failed, -m starts no other


class NoSweep(Sweep, frozen=True, kw_only=True, tag="none"):
    pass


class Search(Sweep, frozen=True, kw_only=True, tag="search"):
    """What `tune` searches. Names are groups or keys as on the command line; objectives are figures of a plan or a bench."""

    over: Literal[
        "plan", "bench"
    ]  # plan: estimates of the cost model; bench: measurements, each in a process of its own
    choices: dict[str, tuple[Any, ...]]  # group → options, or key → values; typed whole it replaces the recipe's
    ranges: dict[str, tuple[Number, ...]]  # key → low, high and, where wanted, step
    log_ranges: dict[str, tuple[Number, ...]]  # key → low, high; each doubling is as likely as the next
    objectives: dict[str, Literal["maximize", "minimize"]]  # figure → direction; of several the Pareto-best are told
    num_trials: Positive  # points that were tried, those of earlier runs with the same out= included
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)]  # of the search
    stop_after_s: Seconds | None  # no new trial is begun after this time; null: num_trials alone ends the search
