"""How requests reach the worlds that serve, and how long these have to finish them once they are told to stop."""

import ipaddress
import math
from collections.abc import Iterator

from deepinfer.config.launchers import KubernetesLauncher, Launcher
from deepinfer.config.serving import Serving
from deepinfer.plan.types import Plan

SECRET_FOLDER = "/etc/deepinfer-secrets"  # of a pod: what launcher.file_secret holds, a file for each entry
LAST_WORDS_S = 20  # beside the drain: last events go out, and ranks give back what they hold
BEFORE_S = 5  # that torchrun kills its ranks before whoever started torchrun would kill it
HERE = ("local",)  # launchers whose ranks are processes of the machine that one types at


def grace_s(plan: Plan) -> int:
    """Seconds from the signal to stop until what still runs may be killed; 0 where the ranks do not serve."""
    return math.ceil(plan.serving.drain_s) + LAST_WORDS_S if plan.serving else 0


def is_loopback(host: str) -> bool:
    """Whether an address is of its own machine, or pod, only. A name counts where it is localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_reachable(plan: Plan) -> bool:
    """Whether requests can come from other machines."""
    return plan.serving is not None and not is_loopback(plan.serving.host)


def request_warnings(plan: Plan, launcher: Launcher, hosts: tuple[str, ...]) -> Iterator[str]:
    """Why requests would not arrive, or keys not be found, and what to type."""
    serving = plan.serving
    if serving is None:
        return
    in_pods = isinstance(launcher, KubernetesLauncher)
    elsewhere = launcher.kind != "torchrun" or bool(hosts) or plan.layout.num_nodes > 1
    if launcher.kind not in HERE and elsewhere and not is_reachable(plan):
        yield _not_reached(serving, in_pods)
    if serving.api_keys is None or launcher.kind in HERE:
        return
    secret = isinstance(launcher, KubernetesLauncher) and launcher.file_secret
    if in_pods and not (secret and serving.api_keys.startswith(f"{SECRET_FOLDER}/")):
        yield (
            f"serving.api_keys={serving.api_keys} must be a file inside the image: kubectl create secret generic NAME "
            f"--from-file=keys.yaml, launcher.file_secret=NAME and serving.api_keys={SECRET_FOLDER}/keys.yaml bring one"
        )
    elif not in_pods and not serving.api_keys.startswith("/"):
        yield f"serving.api_keys={serving.api_keys} is looked for on the node of rank 0, where it is started: give a full path"


def _not_reached(serving: Serving, in_pods: bool) -> str:
    where = "pod" if in_pods else "node"
    keys = (
        f"launcher.file_secret=NAME serving.api_keys={SECRET_FOLDER}/keys.yaml" if in_pods else "serving.api_keys=/FILE"
    )
    until = "; until then there is no Service and no probe, and kubectl port-forward reaches it" if in_pods else ""
    return (
        f"HTTP listens at {serving.host}, which only the {where} of rank 0 itself reaches: launch again with "
        f"serving.host=0.0.0.0 {keys}, or serving.allow_open=true in place of keys{until}"
    )
