"""The pods of a LeaderWorkerSet, and Kubernetes objects as YAML."""

from collections.abc import Sequence
from typing import Any

import yaml

from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job
from deepinfer.plan.launch.kubernetes_http import ending
from deepinfer.plan.launch.shell import command, torchrun
from deepinfer.plan.launch.worlds import World
from deepinfer.plan.types import ModelPlan

PLAN_FOLDER = "/etc/deepinfer"
HUB_FOLDER = "/models"  # where huggingface_hub keeps what it fetches
# Of the vendors' device plugins: https://github.com/NVIDIA/k8s-device-plugin; and for the Ascend 950, unlike the 910 before it,
# https://gitcode.com/Ascend/mind-cluster, whose example for the Atlas 950 SuperPoD asks for huawei.com/npu
# (docs/en/scheduling/04_usage/03_basic_scheduling/01_affinity_scheduling/06_infer_affinity_scheduling.md).
DEVICES = {"cuda": "nvidia.com/gpu", "ascend": "huawei.com/npu"}
GROUP_INDEX = "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"
Object = dict[str, Any]


def pod_spec(job: Job, launcher: KubernetesLauncher, world: World, config_map: str) -> Object:
    """One node of a replica; which one it is, LeaderWorkerSet tells it in variables."""
    volumes, mounts = _volumes(job, launcher, config_map)
    container: Object = {
        "name": "ranks",
        "image": launcher.role_images.get(world.role, launcher.image),
        "command": ["sh", "-c", _start(job, launcher, world)],
        "env": _env(job, world),
        "ports": [{"name": "rendezvous", "containerPort": launcher.master_port}],
        "volumeMounts": mounts,
    }
    if launcher.env_secret:
        container["envFrom"] = [{"secretRef": {"name": launcher.env_secret}}]
    amounts = {"limits": _limits(job, launcher, world), "requests": _requests(job, launcher, world)}
    if any(amounts.values()):
        container["resources"] = {name: amount for name, amount in amounts.items() if amount}
    rdma = launcher.host_network or any("rdma" in name for name in launcher.resources)
    if rdma if launcher.ipc_lock == "auto" else launcher.ipc_lock:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    network: Object = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if launcher.host_network else {}
    return {**network, **ending(job), "containers": [container], "volumes": volumes}


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


def _env(job: Job, world: World) -> list[Object]:
    # Kubernetes replaces $(NAME) in values, and takes $$ for a $ that is meant:
    # https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    given = [{"name": name, "value": str(value).replace("$", "$$")} for name, value in job.env(world).items()]
    hub = [{"name": "HF_HOME", "value": HUB_FOLDER}] if job.plan.model.source == "hub" else []
    return [{"name": "REPLICA", "valueFrom": {"fieldRef": {"fieldPath": GROUP_INDEX}}}, *hub, *given]


def _limits(job: Job, launcher: KubernetesLauncher, world: World) -> dict[str, str]:
    device = DEVICES.get(job.chip(world).kind, "") if launcher.device == "auto" else launcher.device
    devices = {device: str(world.node_ranks[0])} if device else {}
    return devices | {name: str(count) for name, count in launcher.resources.items()}


def _requests(job: Job, launcher: KubernetesLauncher, world: World) -> dict[str, str]:
    """What a node must have free: cores and memory of its ranks, and what the plan holds in the host's memory."""
    ranks, requests = world.node_ranks[0], {}
    if launcher.cpus_per_rank:
        requests["cpu"] = str(launcher.cpus_per_rank * ranks)
    if launcher.memory_bytes_per_rank:
        planned = max(memory.host_bytes for memory in job.plan.memory if memory.role == world.role)
        requests["memory"] = str((launcher.memory_bytes_per_rank + planned) * ranks)
    return requests


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
        volumes.append({"name": "model", **_model_volume(model, launcher)})
        read_only = {"readOnly": True} if model.source == "folder" else {}
        mounts.append(
            {"name": "model", "mountPath": model.location if model.source == "folder" else HUB_FOLDER, **read_only}
        )
    return volumes, mounts


def _model_volume(model: ModelPlan, launcher: KubernetesLauncher) -> Object:
    """Where the model lies; what the hub has and no place is given for goes with the pod, and is fetched again."""
    if launcher.model_claim:
        return {"persistentVolumeClaim": {"claimName": launcher.model_claim}}
    folder = launcher.model_host_path or (model.location if model.source == "folder" else "")
    return {"hostPath": {"path": folder, "type": "Directory"}} if folder else {"emptyDir": {}}


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block, equal parts written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(data: Object, about: Sequence[str]) -> str:
    """An object as YAML, below comment lines that say what it is."""
    comment = "".join(f"# {line}\n" for line in about)
    return comment + str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))
