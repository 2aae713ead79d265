"""What a cluster would refuse when the files are applied: names, images and resources that are none."""

import re
from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.launchers import KubernetesLauncher
from deepinfer.plan.launch.manifests import DEVICES
from deepinfer.plan.launch.texts import is_line, shown
from deepinfer.plan.types import Plan

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ and …/labels/#syntax-and-character-set
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"
_DOMAIN = rf"(?=[^/]{{1,253}}/){_LABEL}(\.{_LABEL})*/"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_OF_CLUSTER = r"ephemeral-storage|hugepages-\d+[KMG]i"  # resources without a domain
# https://github.com/distribution/reference: a registry, path parts in small letters, a tag, a digest
_REGISTRY = r"([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*(:\d+)?/)?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,})?"
_SHAPES = {  # key → what it must match, and how to say so
    "namespace": (_LABEL, "a-z, 0-9 and -, at most 63"),
    "model_claim": (_SUBDOMAIN, "a-z, 0-9, - and ., at most 253"),
    "env_secret": (_SUBDOMAIN, "a-z, 0-9, - and ., at most 253"),
    "file_secret": (_SUBDOMAIN, "a-z, 0-9, - and ., at most 253"),
    "device": (rf"auto|{_DOMAIN}{_NAME}", "DOMAIN/NAME, as in vendor.example/device"),
    "topology_key": (rf"({_DOMAIN})?{_NAME}", "[DOMAIN/]NAME of a node label"),
    "image": (rf"{_REGISTRY}{_PART}(/{_PART})*{_TAG}", "[REGISTRY/]NAME[:TAG][@DIGEST], the name in small letters"),
    "model_host_path": (r"/(?!(.*/)?\.\.(/|$)).*", "/FOLDER from the root, without .."),
    "resources": (rf"{_DOMAIN}{_NAME}|{_OF_CLUSTER}", "DOMAIN/NAME, as in rdma/hca"),
}
PLACES = ("model_claim", "model_host_path")  # of a model
_SOURCES = {"dummy": "made up", "package": "part of deepinfer"}
INSTEAD = {"cpu": "cpus_per_rank", "memory": "memory_bytes_per_rank"}


def kubernetes_problems(plan: Plan, launcher: KubernetesLauncher) -> Iterator[Problem]:
    """Every text of the launcher that an API server would send back, and resources that are the plan's to give."""
    texts = [(name, name, getattr(launcher, name)) for name in _SHAPES if name != "resources"]
    texts += [(f"role_images.{role}", "image", image) for role, image in launcher.role_images.items()]
    for key, rule, text in texts:
        if text is not None and is_line(text) and not re.fullmatch(_SHAPES[rule][0], text):
            yield _no_match(f"launcher.{key}={shown(text)}", rule)
        elif text is not None and key in PLACES and plan.model.source not in ("hub", "folder"):
            found, why = "the plan reads no model from there", f"its weights are {_SOURCES[plan.model.source]}"
            yield Problem(asked=f"launcher.{key}={shown(text)}", found=found, why=why, fix=f"launcher.{key}=null")
    devices = {*DEVICES.values(), launcher.device}
    for name, count in launcher.resources.items():
        asked = f"launcher.resources.{shown(name)}={count}"
        if name in INSTEAD:
            found, why = "each rank has its own", "resources are what a pod has beside them"
            yield Problem(asked=asked, found=found, why=why, fix=f"launcher.{INSTEAD[name]}=N")
        elif name in devices:
            on_node = sum(rank.node == 0 for rank in plan.layout.ranks)
            found, why = f"the plan gives a pod its devices: {on_node} on node 0", "each rank has one"
            yield Problem(asked=asked, found=found, why=why)
        elif not re.fullmatch(_SHAPES["resources"][0], name):
            yield _no_match(asked, "resources")


def _no_match(asked: str, rule: str) -> Problem:
    return Problem(asked=asked, found="a cluster would refuse it", why=f"it must match {_SHAPES[rule][1]}")
