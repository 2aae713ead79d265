"""Rules about experts that change ranks: whether the layout leaves them anywhere to go."""

from collections.abc import Iterator

from deepinfer.config.balancers import StaticBalancer
from deepinfer.config.errors import Problem
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
