"""Whether experts change ranks while an engine runs."""

from deepinfer.config.leaves import Bytes, Component, Count, Positive, Share, Text


class Balancer(Component, frozen=True, kw_only=True):
    """Who decides on which rank an expert lies."""


class StaticBalancer(Balancer, frozen=True, kw_only=True, tag="static"):
    pass


class Eplb(Balancer, frozen=True, kw_only=True, tag="eplb"):
    implementation = "deepinfer.parallel.eplb.balancer:EplbBalancer"
    interval_steps: Count  # between two placements; 0: only when asked
    window_steps: Positive  # newest steps whose loads a placement is made for
    budget_bytes: Bytes  # of experts that a rank sends, and that it receives, in a step; one expert at least
    min_gain: Share  # a layer stays as it is where the busiest ranks would have less than this share less to do
    placement: Text | None  # file of llm.experts.save to begin with; null: experts in order, then copies of the first
