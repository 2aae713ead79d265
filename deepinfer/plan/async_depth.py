"""How many steps are scheduled while another runs."""

from msgspec import structs

from deepinfer.config.specs import Scheduler
from deepinfer.plan.ledger import Ledger
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.types import Drafting


def scheduled_ahead(
    scheduler: Scheduler, roles: tuple[RoleCase, ...], drafting: Drafting, executor: str, ledger: Ledger
) -> Scheduler:
    """With the number of steps that are scheduled ahead."""
    if scheduler.async_depth != "auto":
        return scheduler
    depth = 0
    if executor == "simulated":
        rule = "a virtual clock stands still while the host works"
    elif any(role.is_cpu for role in roles):
        rule = "a CPU computes on the host's own cores, so that there is little to hide"
    elif drafting.depth and not drafting.num_draft_layers:
        rule = f"speculation={drafting.kind} drafts on the host, which waits for the tokens of every step"
    else:
        depth, rule = 1, "the host's work hides behind the device's, and no token changes"
    ledger.decide("scheduler.async_depth", depth, rule, runner_up=1 - depth)
    return structs.replace(scheduler, async_depth=depth)
