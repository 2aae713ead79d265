"""Rules about ranks: what the degrees divide, and who carries out a step."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem, listed
from deepinfer.config.specs import Disaggregated, Parallel
from deepinfer.config.surroundings import DistributedExecutor
from deepinfer.plan.layout import valid_expert_degrees
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.roles import choose, key_of
from deepinfer.plan.settle import Case

COLLECTIVES = {"cpu": "gloo", "cuda": "nccl", "ascend": "hccl", "virtual": "gloo"}
EP_OPTIONS = (2, 4, 8, 16, 32, 64, 128)  # degrees N of which conf/parallel has an epN
SIGNS_OF_LIFE = 3  # that a lost rank has missed


def _degrees(case: Case) -> Iterator[tuple[str, Parallel]]:
    """Name and degrees of each role."""
    return ((role.name, role.parallel) for role in case.roles)


def experts_divide(case: Case) -> Iterator[Problem]:
    """Expert groups must split the ranks and the experts of trunk and drafter evenly."""
    drafting, config = case.drafting.num_draft_layers > 0, case.config
    for role, parallel in _degrees(case):
        degree, ranks, redundant = parallel.expert, parallel.num_ranks, parallel.redundant_experts
        valid = valid_expert_degrees(config, ranks, redundant, drafting=drafting)
        if degree in valid:
            continue
        asked, fix = f"{key_of(role)}.expert={degree}", _nearest_layout(case, role, parallel, drafting)
        ways = "cannot be split" if valid == [1] else f"can be split {listed(str(n) for n in valid)} ways"
        possible = f"these ranks and experts {ways}"
        if ranks == 1:
            possible = "experts are spread over the ranks of a layout"
        found = []
        if ranks % degree:
            found.append(f"{ranks} rank{'s are' if ranks > 1 else ' is'} not divisible by {degree}")
        if (config.n_routed_experts + redundant) % degree:
            experts = f"{config.n_routed_experts} experts{f' + {redundant} redundant' * bool(redundant)}"
            found.append(f"{experts} of {case.model_name} are not divisible by {degree}")
        if drafting and config.dspark_n_routed_experts % degree:
            experts = f"{config.dspark_n_routed_experts} draft experts of {case.model_name}"
            found.append(f"{experts} are not divisible by {degree}")
        yield plan_problem(asked, ", and ".join(found), possible, fix)


def _nearest_layout(case: Case, role: str, parallel: Parallel, drafting: bool) -> str:
    """More copies where they alone are in the way, else the next smaller degree that works.

    Where every rank was of one expert group, the ranks become fewer with it.
    """
    key, config, degree, ranks = key_of(role), case.config, parallel.expert, parallel.num_ranks
    if parallel.redundant_experts and degree in valid_expert_degrees(config, ranks, 0, drafting=drafting):
        return f"{key}.redundant_experts={-(-parallel.redundant_experts // degree) * degree}"
    degrees = range(degree, 0, -1)
    redundant = parallel.redundant_experts
    if ranks == 1:  # asked for by the degree alone: a layout of so many ranks is meant
        fitting = (n for n in EP_OPTIONS if n in valid_expert_degrees(config, n, redundant, drafting=drafting))
        most = max((n for n in fitting if n <= degree), default=1)
        return choose(role, "single" if most == 1 else f"ep{most}")
    if ranks != degree or parallel.context > 1:
        valid = valid_expert_degrees(config, ranks, redundant, drafting=drafting)
        return f"{key}.expert={next(n for n in degrees if n in valid)}"
    best = next(n for n in degrees if n in valid_expert_degrees(config, n, redundant, drafting=drafting))
    return choose(role, "single") if best == 1 else f"{key}.attention_dp={best} {key}.expert={best}"


def redundancy_has_a_use(case: Case) -> Iterator[Problem]:
    """Copies of experts balance load between ranks; on one rank there is nothing to balance."""
    for role, parallel in _degrees(case):
        if parallel.redundant_experts and parallel.expert == 1:
            key = key_of(role)
            yield plan_problem(
                f"{key}.redundant_experts={parallel.redundant_experts}",
                f"{key}.expert=1 keeps all experts on every rank",
                "a copy would balance nothing",
                f"{key}.redundant_experts=0",
            )


def decode_ranks_share_no_prompt(case: Case) -> Iterator[Problem]:
    """Context parallelism is for prompts: ranks that only decode would repeat each other's work."""
    if isinstance(case.spec.deploy, Disaggregated) and case.spec.deploy.decode.parallel.context > 1:
        decode = case.spec.deploy.decode.parallel
        key = "deploy.decode.parallel"
        yield plan_problem(
            f"{key}.context={decode.context}",
            "decode ranks have no prompt to share",
            "each of them would compute the same row",
            f"{key}.context=1 {key}.attention_dp={decode.num_ranks}",
        )


def executor_fits(case: Case) -> Iterator[Problem]:
    """One process runs one rank, a virtual chip runs nothing, and collectives belong to a vendor."""
    executor = case.spec.executor
    if case.executor == "distributed" and case.num_ranks == 1:
        why = "a rank alone has nobody to exchange with"
        yield plan_problem("executor=distributed", "the layout has 1 rank", why, "executor=auto")
    if case.executor == "local" and case.num_ranks > 1:
        found = f"the layout has {case.num_ranks} ranks"
        yield plan_problem("executor=local", found, "one process runs one rank", "executor=distributed")
    if case.executor != "simulated" and any(chip.kind == "virtual" for chip in case.chips):
        why = "it can be simulated only"
        yield plan_problem(f"executor={case.executor}", "hardware=virtual exists nowhere", why, "executor=simulated")
    if not isinstance(executor, DistributedExecutor):
        return
    least_s = float(f"{SIGNS_OF_LIFE * executor.heartbeat_s:g}")  # as it is typed
    if executor.silence_s < least_s:
        asked, found = f"executor.silence_s={executor.silence_s:g}", f"executor.heartbeat_s={executor.heartbeat_s:g}"
        why = f"a rank that missed fewer than {SIGNS_OF_LIFE} signs of life may be busy only"
        yield plan_problem(asked, found, why, f"executor.silence_s={least_s:g}")
    for chip in case.chips:
        able = ["auto", "gloo", COLLECTIVES[chip.kind]]
        if executor.backend not in able:
            found = f"{chip.name} speaks {listed(sorted(set(able[1:])))}"
            yield plan_problem(f"executor.backend={executor.backend}", found, fix="executor.backend=auto")
