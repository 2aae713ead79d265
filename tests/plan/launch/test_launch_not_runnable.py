"""A plan that this version could not run: every file says so before all else, and nothing starts by accident."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from deepinfer.config.specs import Spec
from deepinfer.plan.launch import render
from deepinfer.plan.launch.job import PLAN_FILE, Rendered
from deepinfer.plan.types import Plan

Launch = Callable[[str], tuple[Plan, Rendered]]
LACKS = ("task.run=serve", "hardware=cuda")
SENTENCE = "NOT RUNNABLE with deepinfer 0.1.0: it has no code for task.run=serve, hardware=cuda"
STARTED = {
    "torchrun": "all-0/node-0.sh",
    "slurm": "all-0.sbatch",
    "kubernetes": "all.yaml",
    "ray": "start.py",
    "local": "run.sh",
}


@pytest.fixture
def marked(plan_of: Callable[..., Plan], spec_of: Callable[..., Spec]) -> Launch:
    def make(launcher: str) -> tuple[Plan, Rendered]:
        image = ["launcher.image=x"] if launcher == "kubernetes" else []
        overrides = ("hardware=h200", "parallel=ep8", f"launcher={launcher}", *image)
        plan, spec = structs.replace(plan_of(*overrides), task="serve"), spec_of(*overrides)
        return plan, render(plan, spec.launcher, spec.cluster, LACKS)

    return make


@pytest.mark.parametrize("launcher", STARTED)
def test_every_file_says_so_first(launcher: str, marked: Launch) -> None:
    _, rendered = marked(launcher)
    for name, text in rendered.files.items():
        if name != PLAN_FILE:
            head = "\n".join(text.splitlines()[:3]) if not name.endswith(".py") else text
            assert SENTENCE in head, name
    assert STARTED[launcher] in rendered.files


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "local"])
def test_a_script_ends_before_it_starts_anything(launcher: str, marked: Launch, tmp_path: Path) -> None:
    _, rendered = marked(launcher)
    for name, text in rendered.files.items():
        if name.endswith((".sh", ".sbatch")):
            done = subprocess.run(["bash"], input=text, text=True, capture_output=True, check=False, cwd=tmp_path)
            assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{SENTENCE}\n"), name


def test_the_driver_of_ray_ends_before_it_asks_for_nodes(marked: Launch, tmp_path: Path) -> None:
    _, rendered = marked("ray")
    package = tmp_path / "ray" / "util"
    package.mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text("class ObjectRef: pass\ndef init(address): print('asked')\n")
    (package / "__init__.py").write_text("")
    (package / "placement_group.py").write_text("PlacementGroup = placement_group = None\n")
    (package / "scheduling_strategies.py").write_text("class PlacementGroupSchedulingStrategy: pass\n")
    for name in ("start.py", PLAN_FILE):
        (tmp_path / name).write_text(rendered.files[name], encoding="utf-8")
    done = subprocess.run([sys.executable, "start.py"], cwd=tmp_path, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{SENTENCE}\n")


def test_kubernetes_has_nothing_to_start_again(marked: Launch) -> None:
    _, rendered = marked("kubernetes")
    data = yaml.safe_load(rendered.files["all.yaml"])
    assert data["spec"]["replicas"] == 0
    assert data["metadata"]["annotations"]["deepinfer/not-runnable"] == SENTENCE
    assert "# replicas is 0 instead of 1" in rendered.files["all.yaml"]
    assert "the replicas stand at 0" in rendered.files["README.md"]


def test_a_readme_tells_what_nobody_wrote_yet(case_of: Callable[[str], tuple[Plan, Rendered]]) -> None:
    told = case_of("slurm")[1].files["README.md"]
    assert "## Not in this version" in told
    assert "The router, and the transfer of caches" in told
    one_role = case_of("ray")[1].files["README.md"]
    assert "## Not in this version" not in one_role and "transfer" not in one_role


def test_what_can_run_is_not_marked(case_of: Callable[[str], tuple[Plan, Rendered]]) -> None:
    for name in STARTED:
        assert "NOT RUNNABLE with" not in "".join(case_of(name)[1].files.values())
