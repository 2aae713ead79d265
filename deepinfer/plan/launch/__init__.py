"""The files that start exactly one plan: plan.json, which every rank reads, and what a launcher needs beside it.

Nothing in them composes or decides again: they run `python -m deepinfer rank plan=plan.json role=… replica=…`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from msgspec import structs

from deepinfer.config.clusters import Cluster, SiteCluster
from deepinfer.config.errors import Refused
from deepinfer.config.launchers import Launcher
from deepinfer.plan.launch.checks import launch_problems
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.readme import README, readme
from deepinfer.plan.launch.requests import request_warnings
from deepinfer.plan.launch.worlds import worlds_of
from deepinfer.plan.types import Plan


def render(plan: Plan, launcher: Launcher, cluster: Cluster, lacks: tuple[str, ...] = ()) -> Rendered:
    """All files of a launch by name; `lacks` is what this version has no code for, and marks every file.

    Raises Refused where the launcher cannot start this plan, with every reason.
    """
    site = cluster if isinstance(cluster, SiteCluster) else None
    hosts = site.hosts if site else ()
    assert not hosts or len(hosts) >= plan.layout.num_nodes, "a site with too few nodes has no plan"
    interface = site.interface if site else None
    job = Job(plan=plan, launcher=launcher, worlds=worlds_of(plan), hosts=hosts, interface=interface, lacks=lacks)
    problems = launch_problems(plan, launcher, cluster)
    try:
        rendered = _renderer(launcher)(job)
    except Refused as refused:
        raise Refused([*problems, *refused.problems]) from None
    if problems:
        raise Refused(problems)
    warnings = (*request_warnings(plan, launcher, hosts), *rendered.warnings)
    rendered = structs.replace(rendered, warnings=warnings)
    files = {PLAN_FILE: job.plan_text, README: readme(job, rendered), **rendered.files}
    return structs.replace(rendered, files=files)


def _renderer(launcher: Launcher) -> Callable[[Job], Rendered]:
    module, _, name = launcher.implementation.partition(":")
    return cast(Callable[[Job], Rendered], getattr(import_module(module), name))
