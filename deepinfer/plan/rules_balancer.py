"""Rules about experts that change ranks: whether the layout leaves them anywhere to go."""

from collections.abc import Iterator

from deepinfer.config.balancers import StaticBalancer
from deepinfer.config.errors import Problem
from deepinfer.plan.layout import valid_expert_degrees
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.roles import key_of
from deepinfer.plan.settle import Case


def experts_have_where_to_go(case: Case) -> Iterator[Problem]:
    """A balancer needs ranks among which experts are spread, and either copies of them or several on a rank."""
    balancer = case.spec.balancer
    if isinstance(balancer, StaticBalancer):
        return
    asked, off = f"balancer={balancer.kind}", "balancer=static"
    spread = [role for role in case.roles if role.parallel.expert > 1]
    if not spread:
        key = key_of(case.roles[0].name)
        found = f"{key}.expert={case.roles[0].parallel.expert} keeps all experts on every rank"
        yield plan_problem(asked, found, "there is nothing to balance", off)
        return
    num_experts = case.config.n_routed_experts
    for role in spread:
        degree, copies = role.parallel.expert, role.parallel.redundant_experts
        if degree == num_experts and not copies:
            key = key_of(role.name)
            found = f"{key}.expert={degree} gives each rank one of the {num_experts} experts of {case.model_name}"
            why = "wherever they lie, the busiest rank has as much to do"
            yield plan_problem(asked, found, why, f"{key}.redundant_experts={degree}")


def one_group_balances(case: Case) -> Iterator[Problem]:
    """The driver of a world asks the first group how experts lie; those of another group would move unseen."""
    balancer = case.spec.balancer
    if isinstance(balancer, StaticBalancer):
        return
    for role in case.roles:
        degree, ranks = role.parallel.expert, role.parallel.num_ranks
        if degree == 1 or degree == ranks or ranks % degree:
            continue
        key, drafting = key_of(role.name), case.drafting.num_draft_layers > 0
        whole = ranks in valid_expert_degrees(case.config, ranks, role.parallel.redundant_experts, drafting=drafting)
        found = f"{key}.expert={degree} makes {ranks // degree} groups of {ranks} ranks, each with all experts"
        why = "in this version a world balances one group of experts"
        yield plan_problem(
            f"balancer={balancer.kind}", found, why, f"{key}.expert={ranks}" if whole else "balancer=static"
        )
