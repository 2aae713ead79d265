"""How many ranks a traffic needs: tokens a second of each kind, divided by what a rank of each role does in one."""

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, structs

from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.fleet_types import FleetPlan, Need, Sensitivity
from deepinfer.plan.cost.labels import Label

DAY_S = 86_400
OUTPUT_SHARES = (0.005, 0.01, 0.02, 0.05)
CACHED_SHARES = (0.5, 0.8, 0.9, 0.96)


class Flow(Struct, frozen=True, kw_only=True):
    """Tokens a second at the busiest time, and the part of the prompts that is in the cache already."""

    prompt_tokens_per_s: float
    answer_tokens_per_s: float
    cached_share: float
    least_computed: float = 0.0  # part of a prompt that is computed whatever is cached: its last token
    utilisation: float = 1.0  # part of its time that a rank may be busy

    @property
    def computed_tokens_per_s(self) -> float:
        return self.prompt_tokens_per_s * max(self.least_computed, 1 - self.cached_share)

    @property
    def output_share(self) -> float:
        return self.answer_tokens_per_s / (self.prompt_tokens_per_s + self.answer_tokens_per_s)

    def with_output_share(self, share: float) -> "Flow":
        """As many tokens in all, of which answers are another part."""
        total = self.prompt_tokens_per_s + self.answer_tokens_per_s
        return structs.replace(self, prompt_tokens_per_s=total * (1 - share), answer_tokens_per_s=total * share)


class Replica(Struct, frozen=True, kw_only=True):
    """What is added when a role grows; a rate is 0 for what the role does not do."""

    role: str
    ranks: int
    nodes: int
    prefill_tokens_per_s_per_gpu: float = 0.0  # computed
    decode_tokens_per_s_per_gpu: float = 0.0


ReplicasAt = Callable[[float], Sequence[Replica]]  # by cached share


def flow_of(workload: SteadyWorkload) -> Flow | None:
    """The traffic at its peak; None where the workload names none."""
    prompt, answer = workload.prompt_tokens, workload.output_tokens
    if workload.requests_per_s is not None:
        peak = workload.requests_per_s * workload.peak_to_mean
        return Flow(
            prompt_tokens_per_s=peak * prompt,
            answer_tokens_per_s=peak * answer,
            cached_share=workload.cached_share,
            least_computed=1 / prompt,
            utilisation=workload.utilisation,
        )
    if workload.tokens_per_day is None:
        return None
    total = workload.tokens_per_day / DAY_S * workload.peak_to_mean
    share = answer / (prompt + answer) if workload.output_share == "auto" else workload.output_share
    whole = Flow(
        prompt_tokens_per_s=total,
        answer_tokens_per_s=0.0,
        cached_share=workload.cached_share,
        least_computed=1 / prompt,
        utilisation=workload.utilisation,
    )
    return whole.with_output_share(share)


def fleet_of(
    workload: SteadyWorkload,
    replicas_at: ReplicasAt,
    label: Label,
    free: tuple[str, ...],
    cached_shares: Sequence[float] = CACHED_SHARES,
) -> FleetPlan | None:
    """The fleet for the workload's traffic, and for other shares of answers and of hits; None where it names none.

    `replicas_at` tells what replicas do when such a part of the prompts is cached: with fewer hits keys are longer for
    fewer tokens, and turns with answers are others.
    """
    flow = flow_of(workload)
    if flow is None:
        return None
    replicas = replicas_at(workload.cached_share)
    needs = tuple(_need(flow, replica) for replica in replicas)
    ranks = sum(need.ranks for need in needs)
    total = flow.prompt_tokens_per_s + flow.answer_tokens_per_s
    return FleetPlan(
        requests_per_s=flow.prompt_tokens_per_s / workload.prompt_tokens,
        prompt_tokens_per_s=flow.prompt_tokens_per_s,
        computed_tokens_per_s=flow.computed_tokens_per_s,
        answer_tokens_per_s=flow.answer_tokens_per_s,
        output_share=flow.output_share,
        peak_to_mean=workload.peak_to_mean,
        utilisation=workload.utilisation,
        needs=needs,
        ranks=ranks,
        nodes=sum(need.nodes for need in needs),
        tokens_per_s_per_gpu=total / ranks,
        free=free,
        sensitivity=tuple(_sensitivities(flow, replicas_at, cached_shares))
        if workload.tokens_per_day is not None
        else (),
        label=label,
    )


def exact_ranks(flow: Flow, replica: Replica) -> float:
    """Ranks of one role that would be busy all the time."""
    work = (
        (flow.computed_tokens_per_s, replica.prefill_tokens_per_s_per_gpu),
        (flow.answer_tokens_per_s, replica.decode_tokens_per_s_per_gpu),
    )
    return sum(tokens / rate for tokens, rate in work if rate)


def _need(flow: Flow, replica: Replica) -> Need:
    exact = exact_ranks(flow, replica)
    count = max(1, math.ceil(exact / (replica.ranks * flow.utilisation)))
    tokens = flow.computed_tokens_per_s if replica.prefill_tokens_per_s_per_gpu else 0.0
    tokens += flow.answer_tokens_per_s if replica.decode_tokens_per_s_per_gpu else 0.0
    return Need(
        role=replica.role,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens / exact if exact else 0.0,
        ranks_exact=exact,
        replicas=count,
        ranks=count * replica.ranks,
        nodes=count * replica.nodes,
        utilisation=exact / (count * replica.ranks),
    )


def _sensitivities(flow: Flow, replicas_at: ReplicasAt, cached_shares: Sequence[float]) -> Iterator[Sensitivity]:
    own = replicas_at(flow.cached_share)  # a share of answers changes the traffic, not the requests
    for share in OUTPUT_SHARES:
        yield _sensitivity("output_share", share, flow.with_output_share(share), own)
    for share in cached_shares:
        yield _sensitivity("cached_share", share, structs.replace(flow, cached_share=share), replicas_at(share))


def _sensitivity(key: str, value: float, flow: Flow, replicas: Sequence[Replica]) -> Sensitivity:
    return Sensitivity(
        key=key,
        value=value,
        ranks_exact={replica.role: exact_ranks(flow, replica) for replica in replicas},
        ranks=sum(_need(flow, replica).ranks for replica in replicas),
    )
