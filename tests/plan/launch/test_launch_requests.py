"""How requests reach a launched world, and how long it has to finish them."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepinfer.cli.serve_launched import settings_of_replica
from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import Refused
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.launch.requests import is_loopback
from deepinfer.plan.types import Plan

Launch = Callable[..., tuple[Plan, Rendered]]
POD = ("hardware=h200", "parallel=ep8", "launcher=kubernetes", "launcher.image=x", "launcher.model_claim=m")
OPEN = ("serving.host=0.0.0.0", "serving.port=9000")
KEYS = ("launcher.file_secret=keys", "serving.api_keys=/etc/deepinfer-secrets/keys.yaml")
TWO_PODS = ("parallel.attention_dp=16", "parallel.expert=16")
SITE = SiteCluster(name=None, nodes="auto", hosts=("n1", "n2"), interface=None, verified="untested")


def group(rendered: Rendered) -> Any:
    return yaml.safe_load(rendered.files["all.yaml"])["spec"]["leaderWorkerTemplate"]


def test_the_pod_of_rank_0_has_port_probes_and_keys(launch_of: Launch) -> None:
    _, rendered = launch_of(*POD, *OPEN, *KEYS, "serving.drain_s=40.5")
    assert not rendered.warnings
    assert "leaderTemplate" not in group(rendered), "each replica is one pod"
    pod = group(rendered)["workerTemplate"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "http", "containerPort": 9000} in container["ports"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: (get["path"], get["port"]) for kind, get in probes.items()} == {
        "startup": ("/live", "http"),
        "readiness": ("/health", "http"),
        "liveness": ("/live", "http"),
    }
    assert {"name": "secrets", "secret": {"secretName": "keys"}} in pod["volumes"]
    assert {"name": "secrets", "mountPath": "/etc/deepinfer-secrets", "readOnly": True} in container["volumeMounts"]
    assert pod["terminationGracePeriodSeconds"] == 61, "drain_s and 20 s for the last words"
    assert {"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "56"} in container["env"]


def test_of_several_pods_the_leader_serves(launch_of: Launch) -> None:
    _, rendered = launch_of(*POD, *TWO_PODS, *OPEN, *KEYS)
    leader, worker = (group(rendered)[f"{name}Template"]["spec"] for name in ("leader", "worker"))
    assert "readinessProbe" in leader["containers"][0] and "readinessProbe" not in worker["containers"][0]
    assert leader["terminationGracePeriodSeconds"] == worker["terminationGracePeriodSeconds"] == 50
    service = yaml.safe_load(rendered.files["all-service.yaml"])
    assert service["metadata"]["name"] == "deepinfer-all-http"
    assert service["spec"]["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]
    labels = yaml.safe_load(rendered.files["all.yaml"])["metadata"]["labels"]
    assert service["spec"]["selector"] == labels | {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
    assert "all-service.yaml" in yaml.safe_load(rendered.files["kustomization.yaml"])["resources"]
    assert "http://deepinfer-all-http:9000" in rendered.files["README.md"]


def test_a_pod_that_only_itself_reaches(launch_of: Launch) -> None:
    _, rendered = launch_of(*POD)
    (warning,) = rendered.warnings
    assert "which only the pod of rank 0 itself reaches" in warning and "serving.host=0.0.0.0" in warning
    assert "launcher.file_secret=NAME serving.api_keys=/etc/deepinfer-secrets/keys.yaml" in warning
    assert f"**{warning}**" in rendered.files["README.md"]
    assert "readinessProbe" not in group(rendered)["workerTemplate"]["spec"]["containers"][0]
    assert "all-service.yaml" not in rendered.files


@pytest.mark.parametrize("launcher", ["slurm", "ray", "torchrun"])
def test_a_node_that_only_itself_reaches(launcher: str, launch_of: Launch) -> None:
    plan = ("hardware=h200", "parallel=ep8", *TWO_PODS, f"launcher={launcher}")
    (warning,) = launch_of(*plan, cluster=SITE)[1].warnings
    assert "only the node of rank 0 itself reaches" in warning
    assert not launch_of(*plan, *OPEN, "serving.api_keys=/k", cluster=SITE)[1].warnings
    (warning,) = launch_of(*plan, *OPEN, "serving.api_keys=k", cluster=SITE)[1].warnings
    assert "give a full path" in warning


def test_this_machine_reaches_itself(launch_of: Launch) -> None:
    assert not launch_of("model=v41_tiny", "launcher=local", "launcher.python=python")[1].warnings
    assert not launch_of("hardware=h200", "parallel=ep8", "launcher=torchrun")[1].warnings
    assert not launch_of(*POD, task="plan")[1].warnings
    assert [is_loopback(host) for host in ("127.0.0.2", "::1", "localhost", "0.0.0.0", "::", "node1")] == [
        *[True] * 3,
        *[False] * 3,
    ]


def test_keys_that_no_pod_has(launch_of: Launch) -> None:
    (warning,) = launch_of(*POD, *OPEN, "serving.api_keys=keys.yaml")[1].warnings
    assert "kubectl create secret generic NAME --from-file=keys.yaml" in warning


@pytest.mark.parametrize("port", [0, 29500])
def test_ports_that_no_probe_could_name(port: int, launch_of: Launch) -> None:
    with pytest.raises(Refused, match=f"serving.port={port}"):
        launch_of(*POD, *OPEN, f"serving.port={port}")


def test_replicas_in_pods_take_one_port(launch_of: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = launch_of(*POD, *OPEN, *KEYS)
    assert settings_of_replica(plan, 2).port == 9002
    monkeypatch.setenv("LWS_LEADER_ADDRESS", "deepinfer-all-2.deepinfer-all")
    assert settings_of_replica(plan, 2).port == 9000


def test_every_launcher_waits_for_the_drain(launch_of: Launch) -> None:
    plan = ("hardware=h200", "parallel=ep8", "serving.drain_s=90")
    assert "#SBATCH --signal=TERM@110\n" in launch_of(*plan, "launcher=slurm")[1].files["all-0.sbatch"]
    script = launch_of(*plan, "launcher=torchrun")[1].files["all-0/node-0.sh"]
    assert "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=105\n" in script
    assert "\nEND_S = 110.0\n" in launch_of(*plan, "launcher=ray")[1].files["start.py"]
    (folder,) = (launch_of(*plan, f"launcher={name}")[1].files["README.md"] for name in ("slurm",))
    assert "for 90 s at most" in folder


RANK = """#!/bin/bash
# a rank that drains for a while; those of world decode end with CODE
trap 'sleep "$DRAIN"; echo drained >> "$LOG"; case " $* " in *role=decode*) exit "$CODE";; esac; exit 0' TERM
echo up >> "$LOG"
for _ in {1..600}; do sleep 0.05; done
"""
WORLDS = ("deploy=disaggregated", "parallel@deploy.prefill.parallel=single", "parallel@deploy.decode.parallel=ep2")


@pytest.mark.parametrize(
    ("plan", "drain", "code", "ends"),
    [
        (("parallel=ep2",), "0.5", "0", 0),
        (WORLDS, "0.5", "0", 0),
        (WORLDS, "0.1", "7", 7),
        (("parallel=ep2", "serving.drain_s=0"), "600", "0", 143),
    ],
)
def test_the_local_script_waits_for_the_drain(
    plan: tuple[str, ...], drain: str, code: str, ends: int, launch_of: Launch, tmp_path: Path
) -> None:
    _, rendered = launch_of("model=v41_tiny", *plan, "launcher=local", "launcher.python=./python")
    text = rendered.files["run.sh"].replace("tenths < 200", "tenths < 5").replace("tenths < 50", "tenths < 5")
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "python").write_text(RANK)
    (tmp_path / "python").chmod(0o755)
    log = tmp_path / "log"
    env = {"PATH": os.environ["PATH"], "LOG": str(log), "DRAIN": drain, "CODE": code}
    with (tmp_path / "err").open("wb") as err:
        script = subprocess.Popen(["bash", "run.sh"], cwd=tmp_path, env=env, start_new_session=True, stderr=err)
    try:
        ranks = 3 if plan == WORLDS else 2
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s and (not log.exists() or log.read_text().count("up") < ranks):
            time.sleep(0.05)
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == ends
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
    assert (tmp_path / "err").read_bytes() == b""
    assert log.read_text().count("drained") == (0 if drain == "600" else ranks)
