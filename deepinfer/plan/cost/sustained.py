"""The inverse of a fleet: how much traffic the layout as planned carries, which role limits it, and what balances it."""

import math

from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.both import Estimate
from deepinfer.plan.cost.fleet_types import Sustained
from deepinfer.plan.types import Layout


def sustained_of(estimate: Estimate, layout: Layout) -> Sustained | None:
    """Requests a second of every role; None where users get less than they expect however few they are."""
    if not estimate.contents_users:
        return None
    busy = estimate.workload.utilisation
    prompt_s, answer_s = estimate.gpu_seconds(estimate.decode.point)
    answer_s *= answer_tokens(estimate.workload) / estimate.workload.output_tokens
    first, last = layout.roles[0], layout.roles[-1]
    by_role: dict[str, float]
    if estimate.takes_turns:
        by_role = {first.name: busy * first.num_ranks / (prompt_s + answer_s)}
    else:
        by_role = {first.name: busy * first.num_ranks / prompt_s, last.name: busy * last.num_ranks / answer_s}
    limit = min(by_role, key=by_role.__getitem__)
    most = max(by_role.values())
    now = layout.role(limit).replicas
    wanted = math.ceil(now * most / by_role[limit] * (1 - 1e-9))
    return Sustained(
        requests_per_s=by_role[limit],
        by_role=by_role,
        limit=limit,
        busy=busy,
        replicas={limit: wanted} if wanted > now else {},
        rank_ratio=0.0 if estimate.takes_turns else answer_s / prompt_s,
        label=estimate.label,
    )


def answer_tokens(workload: SteadyWorkload) -> float:
    """Answer tokens that come with each request: as its lengths say, or the share of a day's tokens."""
    if workload.tokens_per_day is None or workload.output_share == "auto":
        return workload.output_tokens
    return workload.prompt_tokens * workload.output_share / (1 - workload.output_share)
