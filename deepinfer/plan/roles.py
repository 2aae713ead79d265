"""Which groups of ranks a deployment has."""

from deepinfer.config.specs import Disaggregated, Parallel, Spec


def roles_of(spec: Spec) -> tuple[tuple[str, int, Parallel], ...]:
    """Name, replicas and degrees of each role, in rank order."""
    deploy = spec.deploy
    if isinstance(deploy, Disaggregated):
        return (
            ("prefill", deploy.prefill.replicas, deploy.prefill.parallel),
            ("decode", deploy.decode.replicas, deploy.decode.parallel),
        )
    return (("all", 1, spec.parallel),)


def key_of(role: str) -> str:
    """Where a role's degrees are written: "parallel", or "deploy.prefill.parallel"."""
    return "parallel" if role == "all" else f"deploy.{role}.parallel"


def choose(role: str, option: str) -> str:
    """The override that takes an option of conf/parallel for a role."""
    return f"parallel={option}" if role == "all" else f"parallel@{key_of(role)}={option}"
