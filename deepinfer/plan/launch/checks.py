"""What may not go into the files of a launch: texts that would mean something else to a shell, a YAML reader or a scheduler."""

import re
from collections.abc import Iterator

from deepinfer.config.clusters import Cluster
from deepinfer.config.errors import Problem, listed
from deepinfer.config.launchers import KubernetesLauncher, Launcher, RayLauncher, SlurmLauncher
from deepinfer.plan.launch.container_rules import container_problems
from deepinfer.plan.launch.env_rules import env_problems
from deepinfer.plan.launch.kubernetes_rules import kubernetes_problems
from deepinfer.plan.launch.site_rules import port_problems, site_problems
from deepinfer.plan.launch.slurm_rules import slurm_problems
from deepinfer.plan.launch.texts import is_line
from deepinfer.plan.types import Plan

_DOLLAR = re.compile(r"\$(?![A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")  # one that is no $NAME and no ${NAME}


def launch_problems(plan: Plan, launcher: Launcher, cluster: Cluster) -> list[Problem]:
    """Everything about the texts of a launch that some reader of its files would take wrongly."""
    return [
        *env_problems(plan, launcher),
        *_text_problems(launcher),
        *_role_problems(plan, launcher),
        *_python_problems(launcher),
        *site_problems(cluster),
        *port_problems(plan, launcher),
        *(slurm_problems(launcher) if isinstance(launcher, SlurmLauncher) else ()),
        *(container_problems(plan, launcher) if isinstance(launcher, SlurmLauncher) else ()),
        *(kubernetes_problems(plan, launcher) if isinstance(launcher, KubernetesLauncher) else ()),
    ]


def _text_problems(launcher: Launcher) -> Iterator[Problem]:
    """Texts become lines of files; one that is empty or several lines would make other ones of them."""
    for key, text in _texts(launcher):
        if not text.strip():
            yield Problem(asked=key, found="it is empty")
        elif not is_line(text):
            yield Problem(asked=key, found="it has a line break or another control character")


def _texts(launcher: Launcher) -> Iterator[tuple[str, str]]:
    for name in launcher.__struct_fields__:
        value = getattr(launcher, name)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        names = [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name] * len(inner)
        yield from ((f"launcher.{key}", text) for key, text in zip(names, inner, strict=True) if isinstance(text, str))


def _role_problems(plan: Plan, launcher: Launcher) -> Iterator[Problem]:
    """Keys that speak of a role must speak of one that the plan has."""
    roles = [role.name for role in plan.layout.roles]
    for name in (name for name in launcher.__struct_fields__ if name.startswith("role_")):
        for role in getattr(launcher, name).keys() - roles:
            why = f"this plan has {listed(roles)}"
            yield Problem(asked=f"launcher.{name}.{role}", found="no such role", why=why)


def _python_problems(launcher: Launcher) -> Iterator[Problem]:
    """The interpreter may name variables of the node, and is no other piece of a shell's language."""
    python = getattr(launcher, "python", None) or ""
    asked = f"launcher.python={python}"
    if isinstance(launcher, RayLauncher) and "$" in python:
        yield Problem(asked=asked, found="a $ in it", why="the driver starts it without a shell, which expands nothing")
    elif is_line(python) and _DOLLAR.search(python):
        yield Problem(asked=asked, found="a $ that begins no $NAME or ${NAME}", why="the shell of a node would run it")
