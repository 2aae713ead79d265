"""The pods of a LeaderWorkerSet, and Kubernetes objects as YAML."""

from typing import Any

import yaml

from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job
from deepinfer.plan.launch.shell import command, torchrun
from deepinfer.plan.launch.worlds import World

PLAN_FOLDER = "/etc/deepinfer"
HUB_FOLDER = "/models"  # where huggingface_hub keeps what it fetches
DEVICES = {"cuda": "nvidia.com/gpu", "ascend": "huawei.com/Ascend910"}  # of the vendors' device plugins
GROUP_INDEX = "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"
Object = dict[str, Any]


def pod_spec(job: Job, launcher: KubernetesLauncher, world: World, config_map: str) -> Object:
    """One node of a replica; which one it is, LeaderWorkerSet tells it in variables."""
    volumes, mounts = _volumes(job, launcher, config_map)
    container: Object = {
        "name": "ranks",
        "image": launcher.role_images.get(world.role, launcher.image),
        "command": ["sh", "-c", _start(job, launcher, world)],
        "env": _env(job, launcher),
        "ports": [{"name": "rendezvous", "containerPort": launcher.master_port}],
        "volumeMounts": mounts,
    }
    if launcher.env_secret:
        container["envFrom"] = [{"secretRef": {"name": launcher.env_secret}}]
    limits = _limits(job, launcher, world)
    if limits:
        container["resources"] = {"limits": limits}
    return {"containers": [container], "volumes": volumes}


def _start(job: Job, launcher: KubernetesLauncher, world: World) -> str:
    words = torchrun(
        world,
        python=launcher.python,
        port=launcher.master_port,  # every pod has an address of its own
        plan=f"{PLAN_FOLDER}/{PLAN_FILE}",
        node="$LWS_WORKER_INDEX",
        ranks=world.node_ranks[0],
        address="$LWS_LEADER_ADDRESS",
    )
    words[-1] = "replica=$REPLICA"
    return f': "${{LWS_WORKER_INDEX:?needs LeaderWorkerSet 0.6 or newer}}"\nexec {command(words)}\n'


def _env(job: Job, launcher: KubernetesLauncher) -> list[Object]:
    given = [{"name": name, "value": str(value)} for name, value in job.env.items()]
    hub = [{"name": "HF_HOME", "value": HUB_FOLDER}] if job.plan.model.source == "hub" else []
    return [{"name": "REPLICA", "valueFrom": {"fieldRef": {"fieldPath": GROUP_INDEX}}}, *hub, *given]


def _limits(job: Job, launcher: KubernetesLauncher, world: World) -> dict[str, str]:
    device = DEVICES.get(job.chip(world).kind, "") if launcher.device == "auto" else launcher.device
    devices = {device: str(world.node_ranks[0])} if device else {}
    return devices | {name: str(count) for name, count in launcher.resources.items()}


def _volumes(job: Job, launcher: KubernetesLauncher, config_map: str) -> tuple[list[Object], list[Object]]:
    volumes: list[Object] = [
        {"name": "plan", "configMap": {"name": config_map}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(launcher.shm_bytes)}},
    ]
    mounts: list[Object] = [
        {"name": "plan", "mountPath": PLAN_FOLDER, "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    model = job.plan.model
    if model.source in ("hub", "folder"):
        on_disk = {"emptyDir": {}} if model.source == "hub" else {"hostPath": {"path": model.location}}
        claim = {"persistentVolumeClaim": {"claimName": launcher.model_claim}}
        volumes.append({"name": "model", **(claim if launcher.model_claim else on_disk)})
        read_only = {"readOnly": True} if model.source == "folder" else {}
        mounts.append(
            {"name": "model", "mountPath": model.location if model.source == "folder" else HUB_FOLDER, **read_only}
        )
    return volumes, mounts


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, equal parts written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(data: Object) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))
