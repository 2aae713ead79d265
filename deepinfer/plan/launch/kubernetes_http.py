"""What a pod and its cluster need beside the ranks so that requests come: a port, probes, keys, and a Service.

HTTP is in the pod of rank 0, which is the leader of its group; the labels are those of LeaderWorkerSet. A kubelet probes the
address of the pod, so that a server that listens at the pod's own loopback has none of it.
"""

from typing import Any

from deepinfer.config.errors import Problem
from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.plan.launch.job import Job
from deepinfer.plan.launch.requests import SECRET_FOLDER, grace_s, is_reachable

HTTP = "http"  # name of the port
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
STARTING_S = (
    600  # that a process may take until it answers at all; loading weights comes later, and takes what it takes
)
Object = dict[str, Any]


def with_http(job: Job, launcher: KubernetesLauncher, pod: Object) -> Object:
    """The pod of rank 0: it has the port, the probes, and the files of the Secret."""
    (container,) = pod["containers"]
    serving, volumes = job.plan.serving, pod["volumes"]
    if serving is not None and is_reachable(job.plan):
        port = {"name": HTTP, "containerPort": serving.port}
        container = {**container, "ports": [*container["ports"], port], **_probes()}
    if launcher.file_secret:
        volumes = [*volumes, {"name": "secrets", "secret": {"secretName": launcher.file_secret}}]
        mount = {"name": "secrets", "mountPath": SECRET_FOLDER, "readOnly": True}
        container = {**container, "volumeMounts": [*container["volumeMounts"], mount]}
    return {**pod, "containers": [container], "volumes": volumes}


def ending(job: Job) -> Object:
    """How long a pod has after SIGTERM; every pod of a group as long, since ranks end when rank 0 says so."""
    return {"terminationGracePeriodSeconds": grace_s(job.plan)} if job.plan.serving else {}


def service_name(launcher: KubernetesLauncher, role: str) -> str:
    """Not that of the LeaderWorkerSet, which has a headless Service of its own."""
    return f"{launcher.name}-{role}-http"


def service(job: Job, launcher: KubernetesLauncher, role: str, labels: dict[str, str]) -> Object:
    """The Service of a role: the pods of rank 0 of all its replicas that are ready."""
    assert job.plan.serving is not None, "made for what is reachable"
    metadata: Object = {"name": service_name(launcher, role)}
    metadata |= {"namespace": launcher.namespace} if launcher.namespace else {}
    port = {"name": HTTP, "port": job.plan.serving.port, "targetPort": HTTP}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata | {"labels": labels},
        "spec": {"selector": labels | LEADER, "ports": [port]},
    }


def http_problems(job: Job) -> list[Problem]:
    """A port of the system's choice could be named to no probe and no Service, one twice would be refused."""
    serving = job.plan.serving
    if serving is None or not is_reachable(job.plan) or serving.port not in (0, job.launcher.master_port):
        return []
    found = "ranks meet there" if serving.port else "each pod would choose its own"
    why, fix = "probes and the Service name the port", "serving.port=8000"
    return [Problem(asked=f"serving.port={serving.port}", found=found, why=why, fix=fix)]


def _probes() -> Object:
    """Ready is who answers requests. Alive is also who loads weights or waits for a lost engine; see docs/serving.md."""
    live, ready = ({"httpGet": {"path": path, "port": HTTP}} for path in ("/live", "/health"))
    every_s = {"periodSeconds": 10, "timeoutSeconds": 5}
    return {
        "startupProbe": {**live, **every_s, "failureThreshold": STARTING_S // 10},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**live, **every_s, "failureThreshold": 6},
    }
