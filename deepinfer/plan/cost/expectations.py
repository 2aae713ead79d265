"""What a workload expects, held against what was reckoned: warnings, or refusals where workload.strict=true."""

from collections.abc import Callable, Iterable, Iterator
from math import ceil, floor, log10

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Problem
from deepinfer.config.specs import Cache, PrefixCache
from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.both import Estimate
from deepinfer.plan.cost.fleet_types import FleetPlan
from deepinfer.plan.ledger import Ledger, plan_problem
from deepinfer.plan.quantities import amount
from deepinfer.plan.types import Capacity

ROOM = 0.8  # a usual figure for how busy ranks may be before requests queue for long


def unreckonable(workload: SteadyWorkload, capacity: Capacity, longest: int, block_tokens: int) -> Problem | None:
    """Why no request of the workload can run here; None where one can."""
    tokens, held = workload.prompt_tokens + workload.output_tokens, capacity.num_blocks * block_tokens
    if tokens <= min(longest, held):
        return None
    most = min(longest, held)
    found = f"model.max_model_len={longest}" if tokens > longest else f"the cache holds {held:,} tokens"
    answer = min(workload.output_tokens, max(1, most // 2))
    shorter = f" workload.output_tokens={answer}" if answer < workload.output_tokens else ""
    return plan_problem(
        f"workload: requests of {tokens:,} tokens",
        f"{'they are longer than ' if tokens > longest else 'they do not fit: '}{found}",
        "nothing is reckoned",
        f"workload.prompt_tokens={max(1, most - answer)}{shorter}",
    )


def missed(estimate: Estimate) -> Iterator[Problem]:
    """Rates and times that no setting of this layout reaches."""
    workload, label = estimate.workload, estimate.said
    if not estimate.contents_users:
        rate = estimate.user_rate
        yield plan_problem(
            f"workload.tokens_per_s_per_user={workload.tokens_per_s_per_user:g}",
            f"a user alone on a rank gets {rate:.3g} tokens/s ({label})",
            f"what helps: {estimate.decode.moves}",
            f"workload.tokens_per_s_per_user={_rounded(rate, floor):g}",
        )
    ttft_s = estimate.prefill.ttft_s[-1]
    if workload.ttft_s is not None and ttft_s > workload.ttft_s:
        yield plan_problem(
            f"workload.ttft_s={workload.ttft_s:g}",
            f"the first token takes {ttft_s:.3g} s on an idle engine ({label})",
            f"what helps: {estimate.prefill.moves}",
            f"workload.ttft_s={_rounded(ttft_s, ceil):g}",
        )


def beyond_the_site(fleet: FleetPlan | None, cluster: Cluster) -> Iterator[Problem]:
    """A fleet for which the site has too few machines."""
    has = cluster.num_nodes if isinstance(cluster, SiteCluster) else None
    if fleet is not None and has is not None and fleet.nodes > has:
        yield plan_problem(
            f"cluster.nodes={has}",
            f"the fleet for {amount(fleet.requests_per_s)} requests/s needs {fleet.nodes:,} ({fleet.label})",
            f"{has:,} is all that the site has",
            f"cluster.nodes={fleet.nodes}",
        )


def advised(estimate: Estimate, fleet: FleetPlan | None) -> Iterator[Problem]:
    """What is worth a warning and never a refusal: a batch that is wider than users allow, a fleet without slack."""
    workload, decode = estimate.workload, estimate.decode
    if decode.limit == "user" and estimate.contents_users:
        widest = estimate.tradeoff(decode.curve[-1])
        count = decode.point.sequences
        yield plan_problem(
            f"scheduler.max_num_seqs={decode.asked_sequences}",
            f"with {widest.sequences:,} at once a user gets {widest.tokens_per_s_per_user:.3g} tokens/s ({estimate.said})",
            f"workload.tokens_per_s_per_user={workload.tokens_per_s_per_user:g} allows {count:,}, for which the figures are",
            f"scheduler.max_num_seqs={count}",
        )
    if fleet is not None and workload.utilisation == 1:
        found = "ranks that are busy all the time leave no room for queues"
        yield plan_problem("workload.utilisation=1", found, fix=f"workload.utilisation={ROOM}")


def hits_without_a_cache(workload: SteadyWorkload, cache: Cache) -> Iterator[Problem]:
    """Hits that the chosen cache cannot give. Without a traffic or an expectation the assumptions tell it."""
    counts = (workload.requests_per_s, workload.tokens_per_day, workload.ttft_s, workload.tokens_per_s_per_user)
    if workload.cached_share and not isinstance(cache, PrefixCache) and any(count is not None for count in counts):
        asked, found = f"workload.cached_share={workload.cached_share:g}", f"cache={cache.kind} keeps no prefixes"
        yield plan_problem(asked, found, "nothing is taken as cached", "cache=prefix")


def tell(problems: Iterable[Problem], ledger: Ledger, *, strict: bool = False) -> None:
    """Problems as refusals, or as warnings that end with the override that clears them."""
    if strict:
        ledger.problems += problems
    else:
        ledger.warnings += [sentence(problem) for problem in problems]


def sentence(problem: Problem) -> str:
    """A problem as one line."""
    return f"{problem.asked}: {'; '.join(filter(None, (problem.found, problem.why, problem.fix)))}"


def _rounded(number: float, way: Callable[[float], int]) -> float:
    """Three digits, rounded down or up so that the number is reached."""
    scale = 10.0 ** (floor(log10(number)) - 2)
    return float(way(number / scale) * scale)
