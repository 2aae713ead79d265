"""launcher=kubernetes: one LeaderWorkerSet for every role, and the plan as a ConfigMap, held together by kustomize.

A replica is a group, a node of the plan is a pod, and inside a pod torchrun starts the ranks. Facts of LeaderWorkerSet (API
leaderworkerset.x-k8s.io/v1, its labels and variables): https://lws.sigs.k8s.io/docs/reference/. Where ranks serve, the leader
of a group has probes, and a role a Service, beside the headless one that a LeaderWorkerSet makes itself.
"""

import hashlib
import re
from itertools import groupby
from typing import Any

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.plan.launch.job import PLAN_FILE, Job, Rendered
from deepinfer.plan.launch.kubernetes_http import http_problems, service, with_http
from deepinfer.plan.launch.manifests import as_yaml, pod_spec
from deepinfer.plan.launch.requests import is_reachable
from deepinfer.plan.launch.shell import about, marked
from deepinfer.plan.launch.worlds import World

MAX_CONFIG_MAP_BYTES = 2**20  # https://kubernetes.io/docs/concepts/configuration/configmap/
KUSTOMIZATION = "kustomization.yaml"
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035 label: a LeaderWorkerSet names a Service
MAX_NAME = 40  # leaves room for -prefill-REPLICA-POD in 63 characters
TOPOLOGY = {"cuda": "nvidia.com/gpu.clique"}  # set by NVIDIA's GPU feature discovery: cluster and NVLink clique


def render(job: Job) -> Rendered:
    """Files `role.yaml`, `role-service.yaml` where requests can come, and `kustomization.yaml`.

    Raises Refused for what a cluster would refuse later.
    """
    launcher = job.launcher
    assert isinstance(launcher, KubernetesLauncher), "chosen by its kind"
    problems = _problems(job, launcher)
    if problems:
        raise Refused(problems)
    config_map = f"{launcher.name}-plan-{hashlib.sha256(job.plan_text.encode()).hexdigest()[:8]}"
    files = {
        f"{role}.yaml": _role_file(job, launcher, list(worlds), config_map)
        for role, worlds in groupby(job.worlds, key=lambda world: world.role)
    }
    if is_reachable(job.plan):
        files |= {
            f"{role}-service.yaml": _service_file(job, launcher, role)
            for role in dict.fromkeys(world.role for world in job.worlds)
        }
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        **({"namespace": launcher.namespace} if launcher.namespace else {}),
        "resources": list(files),
        "configMapGenerator": [{"name": config_map, "files": [PLAN_FILE]}],
        "generatorOptions": {"disableNameSuffixHash": True, "immutable": True},
    }
    comment = [
        *marked(job),
        f"Plan {job.plan.rank_digest} and the objects that start it; written by `deepinfer launch`.",
    ]
    files[KUSTOMIZATION] = as_yaml(kustomization, comment)
    watch = f"kubectl get leaderworkersets,pods -l app.kubernetes.io/instance={launcher.name}"
    namespace = f" -n {launcher.namespace}" if launcher.namespace else ""
    return Rendered(
        files=files,
        steps=("kubectl apply --server-side -k .", f"{watch}{namespace}"),
        notes=tuple(_notes(job, launcher)),
        warnings=tuple(_warnings(job, launcher)),
    )


def _role_file(job: Job, launcher: KubernetesLauncher, worlds: list[World], config_map: str) -> str:
    comment = about(job, worlds[0], f"{len(worlds)} replica{'s' * (len(worlds) > 1)}, each as the first.")
    if job.lacks:
        comment.append(f"replicas is 0 instead of {len(worlds)}, so that nothing starts, fails and starts again.")
    return as_yaml(_worker_set(job, launcher, worlds, config_map), comment)


def _service_file(job: Job, launcher: KubernetesLauncher, role: str) -> str:
    about_it = (
        f"Requests to the replicas of {role} that are ready; plan {job.plan.rank_digest}; written by `deepinfer launch`"
    )
    return as_yaml(service(job, launcher, role, _labels(launcher, role)), [*marked(job), about_it])


def _labels(launcher: KubernetesLauncher, role: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "deepinfer",
        "app.kubernetes.io/instance": launcher.name,
        "app.kubernetes.io/component": role,
    }


def _problems(job: Job, launcher: KubernetesLauncher) -> list[Problem]:
    problems = http_problems(job)
    if not launcher.image and not {world.role for world in job.worlds} <= launcher.role_images.keys():
        why, fix = "there is no public image of deepinfer", "launcher.image=REGISTRY/NAME:TAG"
        problems.append(Problem(asked="launcher=kubernetes", found="no image is given", why=why, fix=fix))
    if not NAME.fullmatch(launcher.name) or len(launcher.name) > MAX_NAME:
        why = f"names of objects have at most {MAX_NAME} of a-z, 0-9 and -, begin with a letter and end in no -"
        problems.append(Problem(asked=f"launcher.name={launcher.name}", found="no name for objects", why=why))
    if launcher.model_claim and launcher.model_host_path:
        asked, found = "launcher.model_host_path", "launcher.model_claim is given, too"
        problems.append(Problem(asked=asked, found=found, why="the model has one place", fix=f"{asked}=null"))
    if job.plan.task == "generate":
        why, fix = "a LeaderWorkerSet starts again what ends, for ever", "task.run=serve"
        problems.append(Problem(asked="task.run=generate", found="it answers and ends", why=why, fix=fix))
    for world in job.worlds:
        if world.replica == 0 and len(set(world.node_ranks)) > 1:
            found = f"a replica of {world.role} has nodes of {world.node_ranks[0]} and of {world.node_ranks[-1]} ranks"
            why = "the pods of one LeaderWorkerSet are alike; use degrees that fill whole nodes"
            fix = "launcher=torchrun"
            problems.append(Problem(asked="launcher=kubernetes", found=found, why=why, fix=fix, code=ExitCode.PLAN))
    size = len(job.plan_text.encode())
    if size > MAX_CONFIG_MAP_BYTES:
        found = f"the plan has {size:,} bytes, a ConfigMap at most {MAX_CONFIG_MAP_BYTES:,}"
        problems.append(Problem(asked="launcher=kubernetes", found=found, fix="launcher=torchrun", code=ExitCode.PLAN))
    return problems


def _worker_set(job: Job, launcher: KubernetesLauncher, worlds: list[World], config_map: str) -> dict[str, Any]:
    """The LeaderWorkerSet of a role, whose replicas are `worlds`."""
    first = worlds[0]
    labels = _labels(launcher, first.role)
    topology = _topology(job, launcher, first)
    annotations = {"leaderworkerset.sigs.k8s.io/exclusive-topology": topology} if topology else {}
    annotations |= {"deepinfer/not-runnable": job.not_runnable} if job.lacks else {}
    about_pod = {"labels": labels, "annotations": {"deepinfer/rank-digest": job.plan.rank_digest}}
    plain = pod_spec(job, launcher, first, config_map)
    leader = with_http(job, launcher, plain)
    alike = first.num_nodes == 1 or leader == plain
    templates = {} if alike else {"leaderTemplate": {"metadata": about_pod, "spec": leader}}
    templates["workerTemplate"] = {"metadata": about_pod, "spec": leader if alike else plain}
    metadata: dict[str, Any] = {"name": f"{launcher.name}-{first.role}"}
    metadata |= {"namespace": launcher.namespace} if launcher.namespace else {}
    metadata |= {"labels": labels} | ({"annotations": annotations} if annotations else {})
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata,
        "spec": {
            "replicas": 0 if job.lacks else len(worlds),
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": first.num_nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                **templates,
            },
        },
    }


def _topology(job: Job, launcher: KubernetesLauncher, world: World) -> str:
    if launcher.topology_key == "none":
        return ""
    if launcher.topology_key != "auto":
        return launcher.topology_key
    return TOPOLOGY.get(job.chip(world).kind, "") if job.spans_domain(world) else ""


def _warnings(job: Job, launcher: KubernetesLauncher) -> list[str]:
    model = job.plan.model
    if model.source != "hub" or launcher.model_claim or launcher.model_host_path:
        return []
    read = f"{model.checkpoint_bytes / 1e9:,.0f} GB"
    return [
        f"every pod fetches the model from the hub, up to {read}, whenever it starts, onto the disk of its node: give it a "
        "place with launcher.model_claim=PVC or launcher.model_host_path=/FOLDER"
    ]


def _notes(job: Job, launcher: KubernetesLauncher) -> list[str]:
    notes = ["the cluster needs LeaderWorkerSet 0.6 or newer: https://lws.sigs.k8s.io/docs/installation/"]
    split = [world for world in job.worlds if job.spans_domain(world) and not _topology(job, launcher, world)]
    if split:
        link = job.chip(split[0]).domain
        notes.append(
            f"nothing keeps a replica inside one {link} domain: launcher.topology_key=LABEL names the node label that does"
        )
    exclusive = {_topology(job, launcher, world) for world in job.worlds} - {""}
    notes += [f"no two replicas share nodes of one {key}: LeaderWorkerSet places them one to one" for key in exclusive]
    return notes
