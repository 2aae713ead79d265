"""What several ranks would find on this machine: cores, memory, and the library by which they talk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepinfer.config.runnable import ONE_RANK_ON, SEVERAL_ON
from deepinfer.plan.prerequisites import Finding

if TYPE_CHECKING:
    from deepinfer.config.probes import MachineFacts
    from deepinfer.plan.types import Plan


def rank_findings(plan: Plan, facts: MachineFacts) -> list[Finding]:
    """For a plan of several ranks what each thing must be here and is, all ranks being processes of this machine; empty for
    one rank."""
    count = plan.layout.num_ranks
    if count == 1:
        return []
    roles = plan.layout.roles
    if any(role.hardware.kind in ONE_RANK_ON for role in roles):
        names = " and ".join(dict.fromkeys(role.hardware.name for role in roles))
        return [_finding("ranks", f"{count} × {names}", SEVERAL_ON, met=False, how="hardware=cpu")]
    if any(role.hardware.kind != "cpu" for role in roles):
        return [_library("nccl"), _library("gloo")]  # devices and their memory have lines of their own
    fullest = {role.name: max(m.device_bytes for m in plan.memory if m.role == role.name) for role in roles}
    total = sum(role.num_ranks * fullest[role.name] for role in roles)
    return [
        _finding(
            "cores", f"{count}", f"{facts.cores}", met=facts.cores >= count, how="ranks take turns; fewer of them"
        ),
        _finding(
            "memory",
            f"{count} ranks × {total / count / 1e9:.2f} GB = {total / 1e9:.2f} GB",
            f"{facts.available_bytes / 1e9:.2f} GB free",
            met=facts.available_bytes >= total or not facts.available_bytes,
            how="scheduler.max_num_seqs, scheduler.max_num_batched_tokens or model.max_model_len lower; fewer ranks",
        ),
        _library("gloo"),
    ]


def _library(name: str) -> Finding:
    import torch.distributed as dist  # seconds, which a report without ranks does not take

    there = {"gloo": "is_gloo_available", "nccl": "is_nccl_available"}[name]
    met = dist.is_available() and bool(getattr(dist, there)())
    how = "a build of torch with torch.distributed: the wheels of PyPI have it on Linux"
    return _finding(name, "torch.distributed", "there" if met else "not in this build of torch", met=met, how=how)


def _finding(what: str, needs: str, found: str, *, met: bool, how: str) -> Finding:
    return Finding(what=what, needs=needs, found=found, met=met, how="" if met else how)
