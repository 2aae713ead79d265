"""What a site asks of the files: its own nodes, cores, containers, networks, and a place for the model."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import Refused
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

Launch = Callable[..., tuple[Plan, Rendered]]
SPLIT = (
    "deploy=disaggregated",
    "hardware=gb300",
    "hardware@deploy.decode.hardware=ascend950dt",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep16",
)
SITE = SiteCluster(name=None, nodes="auto", hosts=("g1", "n1", "n2"), interface="bond0", verified="untested")


def sbatch(text: str) -> list[str]:
    return re.findall(r"^#SBATCH (\S+)$", text, re.MULTILINE)


def pod(text: str) -> Any:
    return yaml.safe_load(text)["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]


def test_each_replica_of_slurm_has_its_own_nodes(launch_of: Launch) -> None:
    _, rendered = launch_of(*SPLIT, "launcher=slurm", cluster=SITE)
    assert "--nodelist=g1" in sbatch(rendered.files["prefill-0.sbatch"])
    assert "--nodelist=n1,n2" in sbatch(rendered.files["decode-0.sbatch"])
    assert {"--exclusive", "--mem=0"} <= set(sbatch(rendered.files["decode-0.sbatch"]))
    assert "nodelist" not in launch_of(*SPLIT, "launcher=slurm")[1].files["decode-0.sbatch"]


@pytest.mark.parametrize("launcher", ["slurm", "torchrun", "ray", "kubernetes"])
def test_a_network_interface_is_told_to_the_library_that_is_there(launcher: str, launch_of: Launch) -> None:
    image = ("launcher.image=x",) if launcher == "kubernetes" else ()
    _, rendered = launch_of(*SPLIT, f"launcher={launcher}", *image, cluster=SITE)
    for role, there, other in (("prefill", "NCCL", "HCCL"), ("decode", "HCCL", "NCCL")):
        texts = [text for name, text in rendered.files.items() if name.startswith(role)]
        if launcher == "ray":
            (line,) = re.findall(r"^ENV = (.*)$", rendered.files["start.py"], re.MULTILINE)
            texts = [line.partition(f"'{role}': ")[2].partition("}")[0]]
        assert texts
        for text in texts:
            assert f"{there}_SOCKET_IFNAME" in text and "GLOO_SOCKET_IFNAME" in text
            assert f"{other}_SOCKET_IFNAME" not in text


def test_cores_and_memory_of_a_shared_node(launch_of: Launch) -> None:
    keys = ("launcher.exclusive=false", "launcher.cpus_per_task=12", "launcher.mem=480G")
    text = launch_of("hardware=h200", "parallel=ep8", "launcher=slurm", *keys)[1].files["all-0.sbatch"]
    assert {"--cpus-per-task=12", "--mem=480G"} <= set(sbatch(text)) and "--exclusive" not in text
    assert "--cpus-per-task=12 bash" in text.partition("srun")[2]  # srun does not take it from sbatch
    _, rendered = launch_of("hardware=h200", "parallel=ep8", "launcher=slurm", "launcher.exclusive=false")
    assert any("launcher.cpus_per_task=N" in note for note in rendered.notes)


def test_ranks_of_slurm_in_containers(launch_of: Launch) -> None:
    keys = ("launcher.image=lab#deepinfer:1", "launcher.role_images.decode=/img/cann.sqsh")
    mounts = "launcher.container_mounts=['/srv/hub:/models']"
    _, rendered = launch_of(*SPLIT, "launcher=slurm", *keys, mounts)
    start = rendered.files["prefill-0.sbatch"].partition("srun")[2]
    assert "--container-image='lab#deepinfer:1'" in start or "'--container-image=lab#deepinfer:1'" in start
    assert '"--container-mounts=$SLURM_SUBMIT_DIR:$SLURM_SUBMIT_DIR,/srv/hub:/models"' in start
    assert "--container-image=/img/cann.sqsh" in rendered.files["decode-0.sbatch"]


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("launcher.image='$(reboot)'", "no name of an image"),
        ("launcher.container_mounts=['/srv']", "no mount"),
        ("launcher.container_mounts=['/$(reboot):/x']", "no mount"),
    ],
)
def test_words_that_srun_would_read_otherwise(key: str, found: str, launch_of: Launch) -> None:
    with pytest.raises(Refused, match=found):
        launch_of("launcher=slurm", key)


OPEN = ("serving.host=0.0.0.0", "serving.allow_open=true")
HUB = ("hardware=h200", "parallel=ep8", "launcher=kubernetes", "launcher.image=x", *OPEN)


def test_a_model_without_a_place_is_told_of_first(launch_of: Launch) -> None:
    _, rendered = launch_of(*HUB)
    (warning,) = rendered.warnings
    assert "every pod fetches the model from the hub, up to 510 GB" in warning
    assert f"**{warning}**" in rendered.files["README.md"]
    assert {"name": "model", "emptyDir": {}} in pod(rendered.files["all.yaml"])["volumes"]


@pytest.mark.parametrize(
    ("key", "volume"),
    [
        ("model_claim=weights", {"persistentVolumeClaim": {"claimName": "weights"}}),
        ("model_host_path=/srv/hub", {"hostPath": {"path": "/srv/hub", "type": "Directory"}}),
    ],
)
def test_a_place_for_the_model(key: str, volume: dict[str, Any], launch_of: Launch) -> None:
    _, rendered = launch_of(*HUB, f"launcher.{key}")
    assert not rendered.warnings
    assert {"name": "model"} | volume in pod(rendered.files["all.yaml"])["volumes"]
    with pytest.raises(Refused, match="the model has one place"):
        launch_of(*HUB, "launcher.model_claim=a", "launcher.model_host_path=/b")


def test_what_a_pod_requests(launch_of: Launch) -> None:
    """Cores and memory of its ranks, and what the plan holds in the memory of the host."""
    plan, rendered = launch_of(*HUB, "parallel.engram=host")
    (container,) = pod(rendered.files["all.yaml"])["containers"]
    on_host = plan.memory[0].host_bytes
    assert on_host > 25e9
    assert container["resources"]["requests"] == {"cpu": "32", "memory": str((16 * 2**30 + on_host) * 8)}
    keys = ("launcher.cpus_per_rank=null", "launcher.memory_bytes_per_rank=null")
    (container,) = pod(launch_of(*HUB, *keys)[1].files["all.yaml"])["containers"]
    assert "requests" not in container["resources"]


def test_rdma(launch_of: Launch) -> None:
    assert "securityContext" not in launch_of(*HUB)[1].files["all.yaml"]
    for keys in (["launcher.resources={rdma/hca: 8}"], ["launcher.host_network=true"], ["launcher.ipc_lock=true"]):
        assert "IPC_LOCK" in launch_of(*HUB, *keys)[1].files["all.yaml"]
    never = ("launcher.resources={rdma/hca: 8}", "launcher.ipc_lock=false")
    assert "IPC_LOCK" not in launch_of(*HUB, *never)[1].files["all.yaml"]
