"""The files are what those who read them document: bash, sbatch, Kubernetes, LeaderWorkerSet, Ray."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

Case = Callable[[str], tuple[Plan, Rendered]]
SCHEMAS = Path(__file__).parent / "schemas"
KUBERNETES = "1.30"


@pytest.mark.parametrize("name", ["torchrun", "slurm", "local"])
def test_bash_reads_the_scripts(name: str, case_of: Case) -> None:
    _, rendered = case_of(name)
    scripts = [text for file, text in rendered.files.items() if file.endswith((".sh", ".sbatch"))]
    assert scripts
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_address_is_a_sentence(case_of: Case) -> None:
    _, rendered = case_of("torchrun")
    script = rendered.files["all-0/node-1.sh"].replace("exec ", "echo ")
    done = subprocess.run(
        ["bash"], input=script, text=True, capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode != 0
    assert "MASTER_ADDR: set it to the address of the machine that runs all-0/node-0.sh" in done.stderr


def test_sbatch_knows_the_options(case_of: Case) -> None:
    """Long options of https://slurm.schedmd.com/sbatch.html."""
    documented = set((SCHEMAS / "sbatch_options.txt").read_text("utf-8").split())
    _, rendered = case_of("slurm")
    for name, text in rendered.files.items():
        if name.endswith(".sbatch"):
            head = text.partition("\nset -")[0].splitlines()
            assert head[0] == "#!/bin/bash" and all(line.startswith("#") for line in head)
            used = [re.fullmatch(r"#SBATCH --([a-z-]+)(=\S+)?", line) for line in head if line.startswith("#SBATCH")]
            assert all(used) and len(used) >= 6
            assert {match.group(1) for match in used if match} <= documented


def closed(schema: Any) -> Any:
    """The schema with no room for keys that it does not name: a cluster would drop them without a word."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return found


@pytest.fixture(scope="module")
def worker_set_schema() -> Any:
    return closed(yaml.safe_load((SCHEMAS / "leaderworkerset.yaml").read_text("utf-8")))


def manifests(rendered: Rendered) -> dict[str, Any]:
    return {name: yaml.safe_load(text) for name, text in rendered.files.items() if name.endswith(".yaml")}


def test_leader_worker_sets(case_of: Case, worker_set_schema: Any) -> None:
    objects = manifests(case_of("kubernetes")[1])
    objects.pop("kustomization.yaml")
    services = [objects.pop(f"{role}-service.yaml") for role in ("prefill", "decode")]
    assert objects.keys() == {"prefill.yaml", "decode.yaml"}
    for data in objects.values():
        jsonschema.validate(data, worker_set_schema)
        group = data["spec"]["leaderWorkerTemplate"]
        for template in (group[name] for name in ("leaderTemplate", "workerTemplate") if name in group):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "x"} | template["metadata"],
                "spec": template["spec"],
            }
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    for service in services:
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


def test_the_schemas_can_refuse(case_of: Case, worker_set_schema: Any) -> None:
    data = manifests(case_of("kubernetes")[1])["decode.yaml"]
    data["spec"]["leaderWorkerTemplate"]["sise"] = 3
    with pytest.raises(jsonschema.ValidationError, match="sise"):
        jsonschema.validate(data, worker_set_schema)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"imagee": "x"}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_pods_of_every_source_and_extra(launch_of: Callable[..., tuple[Plan, Rendered]], tmp_path: Path) -> None:
    extras = (
        "launcher=kubernetes",
        "launcher.image=x",
        "launcher.namespace=llm",
        "launcher.env_secret=hub",
        "launcher.resources={rdma/hca: 8}",
        "launcher.topology_key=topology.kubernetes.io/zone",
        "launcher.host_network=true",
        "launcher.env.A=1",
    )
    shutil.copyfile(Path(__file__).parents[2] / "fixtures" / "k6_config.json", tmp_path / "config.json")
    devices = {"huawei.com/npu": "8"}
    for model, limits in (
        (("hardware=ascend950", "parallel=ep8", "launcher.model_claim=weights"), devices),
        ((f"model.path={tmp_path}", "model.weights=dummy"), {}),
    ):
        data = manifests(launch_of(*model, *extras)[1])["all.yaml"]
        template = data["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        (container,) = template["spec"]["containers"]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        assert data["metadata"]["namespace"] == "llm"
        assert data["metadata"]["annotations"] == {
            "leaderworkerset.sigs.k8s.io/exclusive-topology": "topology.kubernetes.io/zone"
        }
        assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
        assert container["env"][-1] == {"name": "A", "value": "1"}
        assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
        assert template["spec"]["hostNetwork"] and template["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert container["resources"]["limits"] == limits | {"rdma/hca": "8"}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_builds_it(case_of: Case, tmp_path: Path) -> None:
    plan, rendered = case_of("kubernetes")
    for name, text in rendered.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = {data["kind"]: data for data in yaml.safe_load_all(done.stdout)}
    assert built.keys() == {"ConfigMap", "LeaderWorkerSet", "Service"}
    assert Plan.from_json(built["ConfigMap"]["data"]["plan.json"]) == plan
    kubernetes_validate.validate(built["ConfigMap"], KUBERNETES, strict=True)
    volumes = built["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["volumes"]
    assert volumes[0]["configMap"]["name"] == built["ConfigMap"]["metadata"]["name"]


def test_the_ray_driver_imports_ray_and_the_standard_library(case_of: Case) -> None:
    text = case_of("ray")[1].files["start.py"]
    module = ast.parse(text)
    compile(module, "start.py", "exec")
    imported = {
        name.partition(".")[0]
        for node in ast.walk(module)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "ray" in imported and imported - {"ray"} <= sys.stdlib_module_names
    assert not re.search(r"@[A-Z]+@", text)
