"""launcher=ray: one driver that reserves the nodes of every replica and starts their ranks.

A node of the plan is a bundle, which Ray never splits; the bundles of a replica lie on nodes of their own (STRICT_SPREAD).
In each, torchrun starts the ranks, so that they find what they find under launcher=torchrun.
"""

from importlib.resources import files

from deepinfer.config.launchers import RayLauncher
from deepinfer.plan.launch.job import Job, Rendered
from deepinfer.plan.launch.requests import grace_s

FILE = "start.py"
VALUES = "@VALUES@"  # the line of the template that makes it the driver of one plan
END_S = 60.0  # that ranks have to end when they are told to
RESOURCE = {"cuda": "GPU", "ascend": "NPU"}  # https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html


def render(job: Job) -> Rendered:
    """`start.py`: `ray_driver.template` with the worlds of the plan filled in."""
    launcher = job.launcher
    assert isinstance(launcher, RayLauncher), "chosen by its kind"
    worlds = [
        (world.role, world.replica, job.port(world), RESOURCE.get(job.chip(world).kind, "CPU"), world.node_ranks)
        for world in job.worlds
    ]
    values = {
        "DIGEST": job.plan.rank_digest,
        "ADDRESS": launcher.address,
        "PYTHON": launcher.python,
        "WAIT_S": launcher.wait_s,
        "END_S": max(END_S, float(grace_s(job.plan))),
        "ENV": {world.role: {name: str(value) for name, value in job.env(world).items()} for world in job.worlds},
        "NOT_RUNNABLE": job.not_runnable,
    }
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    lines += ["WORLDS = [  # role, replica, port, resource of a rank, ranks of each node"]
    lines += [*(f"    {world!r}," for world in worlds), "]"]
    text = (files("deepinfer.plan.launch") / "ray_driver.template").read_text(encoding="utf-8")
    driver = text.replace(VALUES, "\n".join(lines))
    notes = (
        "every node needs deepinfer for the interpreter launcher.python; the driver sends plan.json to them itself",
        "from outside the cluster: ray job submit --working-dir . -- python start.py",
    )
    return Rendered(files={FILE: driver}, steps=(f"python {FILE}",), notes=notes)
