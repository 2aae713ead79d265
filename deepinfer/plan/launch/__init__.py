"""The files that start exactly one plan: plan.json, which every rank reads, and what a launcher needs beside it.

Nothing in them composes or decides again: they run `python -m deepinfer rank plan=plan.json role=… replica=…`.
"""

import re
import unicodedata
from collections.abc import Callable
from importlib import import_module
from typing import cast

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Problem, Refused, listed
from deepinfer.config.launchers import Launcher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.readme import README, readme
from deepinfer.plan.launch.worlds import worlds_of
from deepinfer.plan.types import Plan

INTERFACE = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")  # of the libraries that join ranks
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.IGNORECASE)


def render(plan: Plan, launcher: Launcher, cluster: Cluster) -> Rendered:
    """All files of a launch by name. Raises Refused where the launcher cannot start this plan, with every reason."""
    hosts = cluster.hosts if isinstance(cluster, SiteCluster) else ()
    assert not hosts or len(hosts) >= plan.layout.num_nodes, "a site with too few nodes has no plan"
    job = Job(plan=plan, launcher=launcher, worlds=worlds_of(plan), hosts=hosts, env=_interface(cluster) | launcher.env)
    problems = [*_env_problems(launcher), *_text_problems(launcher), *_role_problems(job)]
    try:
        rendered = _renderer(launcher)(job)
    except Refused as refused:
        raise Refused([*problems, *refused.problems]) from None
    if problems:
        raise Refused(problems)
    files = {PLAN_FILE: job.plan_text, README: readme(job, rendered), **rendered.files}
    return Rendered(files=files, steps=rendered.steps, notes=rendered.notes)


def _renderer(launcher: Launcher) -> Callable[[Job], Rendered]:
    module, _, name = launcher.implementation.partition(":")
    return cast(Callable[[Job], Rendered], getattr(import_module(module), name))


def _interface(cluster: Cluster) -> dict[str, int | str]:
    name = cluster.interface if isinstance(cluster, SiteCluster) else None
    return dict.fromkeys(INTERFACE, name) if name else {}


def _env_problems(launcher: Launcher) -> list[Problem]:
    problems = []
    for name in launcher.env:
        asked = f"launcher.env.{name}"
        if not _VARIABLE.fullmatch(name):
            problems.append(Problem(asked=asked, found="no name of a variable", why="shells could not set it"))
        elif _SECRET.search(name):
            why = "the files of a launch are read by many"
            fix = "launcher.env_secret=NAME" if launcher.kind == "kubernetes" else f"export {name}=… on the nodes"
            problems.append(Problem(asked=asked, found="a secret, by its name", why=why, fix=fix))
    return problems


def _role_problems(job: Job) -> list[Problem]:
    """Keys that speak of a role must speak of one that the plan has."""
    roles = [role.name for role in job.plan.layout.roles]
    problems = []
    for name in (name for name in job.launcher.__struct_fields__ if name.startswith("role_")):
        for role in getattr(job.launcher, name).keys() - roles:
            why = f"this plan has {listed(roles)}"
            problems.append(Problem(asked=f"launcher.{name}.{role}", found="no such role", why=why))
    return problems


def _text_problems(launcher: Launcher) -> list[Problem]:
    """Texts become lines of files; one that is empty or several lines would make other ones of them."""
    texts: dict[str, object] = {}
    for name in launcher.__struct_fields__:
        value = getattr(launcher, name)
        texts |= {f"launcher.{name}.{key}": text for key, text in value.items()} if isinstance(value, dict) else {}
        texts |= {f"launcher.{name}": text for text in (value if isinstance(value, tuple) else (value,))}
    return [
        Problem(
            asked=key, found="it is empty" if not text.strip() else "it has a line break or another control character"
        )
        for key, text in texts.items()
        if isinstance(text, str) and (not text.strip() or any(unicodedata.category(char) == "Cc" for char in text))
    ]
