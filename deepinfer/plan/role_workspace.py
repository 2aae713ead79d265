"""The workspace of a role's ranks: of fused operations, of torch's twins of them, or of one op after another."""

from msgspec import structs

from deepinfer.arch.cache import DTYPE_ITEMSIZE, CacheLayout
from deepinfer.arch.routing import skewed_load
from deepinfer.plan.exchange_sizes import Exchange
from deepinfer.plan.roles import RoleCase
from deepinfer.plan.settle import Case
from deepinfer.plan.twin_step import twin_bytes
from deepinfer.plan.types import OpChoice
from deepinfer.plan.workspace import FusedSizes, FusedWorkspace, fused_workspace, workspace_bytes


def role_workspace(
    case: Case, role: RoleCase, cache: CacheLayout, ops: tuple[OpChoice, ...], longest: int
) -> FusedWorkspace:
    """`longest`: tokens of a sequence at most."""
    config, numerics, scheduler = case.config, case.numerics, case.spec.scheduler
    if not role.is_fused:
        gathers = any(choice.resident == "expanded" for choice in ops)
        step = workspace_bytes(config, numerics, scheduler, case.drafting, max_model_len=longest, gathers=gathers)
        return FusedWorkspace(kept=0, step=step)
    sizes = FusedSizes(
        slots=scheduler.max_num_seqs,
        batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=longest,
        load=skewed_load(role.parallel.expert, config.n_routed_experts),
        graphs=all(choice.backend != "reference" for choice in ops),
    )
    workspace = fused_workspace(config, cache, numerics, case.drafting, sizes)
    if sizes.graphs:
        return workspace
    more = twin_bytes(config, sizes.batched_tokens, DTYPE_ITEMSIZE[numerics.dtype])
    return structs.replace(workspace, step=workspace.step + more)


def exchange_bytes(case: Case, role: RoleCase) -> dict[str, int]:
    """Of rows on their way between ranks of fused operations that share experts; nothing where none do."""
    ranks, numerics = role.parallel.expert, case.numerics
    exchange = Exchange(
        ranks=ranks,
        load=skewed_load(ranks, case.config.n_routed_experts),
        itemsize=DTYPE_ITEMSIZE[numerics.dtype],
        by_pair=numerics.reproducible,
    )
    found = exchange.num_bytes(case.config, case.spec.scheduler.max_num_batched_tokens)
    return {"exchange": found} if found else {}
