"""The load that a plan is costed for: sizes of requests, how many there are, and what their users expect."""

from typing import Annotated

from msgspec import Meta

from deepinfer.config.leaves import Auto, Component, Share, Text

Tokens = Annotated[int, Meta(ge=1, le=10**9, extra={"unit": "count"})]
Rate = Annotated[float, Meta(gt=0, le=1e9, extra={"unit": "count"})]
Daily = Annotated[float, Meta(gt=0, le=1e18, extra={"unit": "count"})]


class Workload(Component, frozen=True, kw_only=True):
    """The load a plan is costed for."""


class SteadyWorkload(Workload, frozen=True, kw_only=True, tag="steady"):
    """Requests of one size: means in tokens, the part of the prompt that is in the cache already, and the traffic."""

    prompt_tokens: Tokens  # mean of a prompt
    output_tokens: Tokens  # mean of an answer
    cached_share: Share  # part of the prompts that is in the cache already; counts where the cache keeps prefixes
    accepted_tokens: Annotated[float, Meta(ge=1)] | Auto  # tokens a verified step yields; auto takes published ones
    requests_per_s: Rate | None  # traffic to size a fleet for
    tokens_per_day: Daily | None  # the same, as prompt and answer tokens of a day together
    output_share: Annotated[float, Meta(gt=0, lt=1)] | Auto  # answers among tokens_per_day; auto: from the lengths
    peak_to_mean: Annotated[float, Meta(ge=1, le=1000)]  # busiest hour against the mean
    utilisation: Annotated[float, Meta(gt=0, le=1)]  # part of its time that a rank may be busy; queues need the rest
    tokens_per_s_per_user: Rate | None  # slowest answer that will do; null: as many sequences as the scheduler takes
    ttft_s: Annotated[float, Meta(gt=0, extra={"unit": "s"})] | None  # latest first token that will do
    strict: bool  # expectations that are missed, and fleets beyond the site, are refused instead of warned of


class TraceWorkload(Workload, frozen=True, kw_only=True, tag="trace"):
    path: Text | None  # file of requests and arrival times
