"""Every file of conf/cluster plans, fits and is honest about what was run; and so can a user's own."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deepinfer.cli.help import HEADER, options, purpose
from deepinfer.config.clusters import SiteCluster, Verified
from deepinfer.config.compose import load_with_choices
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.specs import Spec
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan, PlanErrors, RolePlan

ROOT = Path(__file__).parents[2]
CLUSTERS = [name for name in options("cluster") if name != "none"]
SHAPES = {  # file → ranks of each role, nodes, domains, and how the tables lie
    "laptop": ([1], 1, 1, "replicated"),
    "virtual_ep4": ([4], 1, 1, "sharded"),
    "h200_one": ([1], 1, 1, "replicated"),
    "h200_node": ([8], 1, 1, "sharded"),
    "h100_node": ([8], 1, 1, "host"),
    "h200_pd": ([8, 8], 2, 2, "sharded"),
    "b200_pd": ([4, 8], 2, 2, "sharded"),
    "gb200_rack": ([8, 64], 18, 1, "sharded"),
    "gb300_pd64": ([4, 64], 17, 1, "sharded"),
    "ascend950_ep64": ([64], 8, 1, "sharded"),
    "ascend950_ep128": ([32, 128], 20, 5, "sharded"),
    "gb300_ascend950": ([4, 64], 9, 2, "sharded"),
}
SITE = "cluster: {kind: site, name: mine, nodes: 1, hosts: [], interface: null, verified: untested}\n"
MINE = f"""\
# @package _global_
# A site of mine.
defaults:
  - override /hardware: h200
  - override /parallel: ep8

scheduler:
  max_num_seqs: 16

{SITE}"""


@pytest.fixture
def planned(machine: type) -> Callable[..., tuple[Spec, Plan]]:
    """Spec and plan of some overrides on a laptop, through Hydra."""

    def make(*overrides: str, config_dir: Path | None = None) -> tuple[Spec, Plan]:
        spec, choices = load_with_choices(*overrides, config_dir=str(config_dir) if config_dir else None)
        return spec, resolve(spec, probe(spec, machine()), choices)

    return make


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], Path]:
    """A user's folder with one cluster file of this text, called mine."""

    def write(text: str) -> Path:
        (tmp_path / "cluster").mkdir()
        (tmp_path / "cluster" / "mine.yaml").write_text(text, "utf-8")
        return tmp_path

    return write


def problems_of(planned: Callable[..., object], *overrides: str, **more: Path) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as error:
        planned(*overrides, **more)
    return error.value.problems


def held_by(plan: Plan, role: RolePlan) -> int:
    return max(memory.device_bytes for memory in plan.memory if memory.role == role.name)


def test_there_are_at_least_nine_and_all_are_told_of_here() -> None:
    assert len(CLUSTERS) >= 9
    assert set(CLUSTERS) == SHAPES.keys()


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_plans_and_fits(planned: Callable[..., tuple[Spec, Plan]], name: str) -> None:
    spec, plan = planned(f"cluster={name}")
    ranks, nodes, domains, tables = SHAPES[name]
    layout = plan.layout
    assert [role.num_ranks for role in layout.roles] == ranks
    assert (layout.num_nodes, layout.num_domains) == (nodes, domains)
    assert {role.engram for role in layout.roles} == {tables}
    assert isinstance(spec.cluster, SiteCluster) and spec.cluster.nodes == nodes
    for role in layout.roles:
        assert held_by(plan, role) <= role.hardware.usable_bytes
        if role.hardware.kind != "cpu":
            per_node = [[rank.device for rank in layout.ranks if rank.node == node] for node in range(nodes)]
            assert all(sorted(devices) == list(range(len(devices))) for devices in per_node)
    assert plan.capacity.tokens >= plan.model.max_model_len
    assert plan.choices["cluster"] == name
    assert len(plan.warnings) == (name == "gb300_ascend950")  # two vendors


def test_the_released_model_needs_more_than_one_h200(planned: Callable[..., object]) -> None:
    with pytest.raises(PlanErrors) as error:
        planned("cluster=h200_one", "model=v41_flash")
    assert error.value.exit_code == ExitCode.MEMORY


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_file_says_what_it_is_and_what_was_run(name: str) -> None:
    text = (ROOT / "conf" / "cluster" / f"{name}.yaml").read_text("utf-8")
    assert text.startswith(f"{HEADER}package _global_\n# ")
    assert purpose("cluster", name).endswith(".")
    verified = yaml.safe_load(text)["cluster"]["verified"]
    if verified == "untested":
        return
    assert verified.keys() == set(Verified.__struct_fields__)
    assert all(isinstance(value, str) and value for value in verified.values())
    assert name == "laptop", "no accelerator has run anything yet"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a commit can be looked up in a checkout only")
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_verified_commit_exists(name: str) -> None:
    verified = load_with_choices(f"cluster={name}")[0].cluster.verified  # type: ignore[attr-defined]
    if isinstance(verified, Verified):
        named = ["git", "cat-file", "-e", f"{verified.commit}^{{commit}}"]
        shallow = subprocess.run(
            ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True
        )
        assert shallow.stdout.strip() == "true" or subprocess.run(named, cwd=ROOT).returncode == 0


def test_from_the_command_line() -> None:
    command = [sys.executable, "-m", "deepinfer", "plan", "cluster=gb300_ascend950"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "4 × NVIDIA GB300 NVL72 + 64 × Huawei Ascend 950DT" in done.stdout


# the site against the layout


def test_a_layout_that_needs_more_nodes(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    (problem,) = problems_of(planned, "cluster=h200_node", "parallel=ep64")
    assert problem.code == ExitCode.PLAN
    assert problem.asked == "cluster.nodes=1"
    assert problem.found == "the layout needs 8 nodes: 8 with 8 × NVIDIA H200 SXM"
    assert problem.fix == "parallel=ep8"
    assert planned("cluster=h200_node", problem.fix)


def test_nodes_of_two_chips_are_counted_for_each(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    (problem,) = problems_of(planned, "cluster=gb300_ascend950", "deploy.prefill.replicas=2")
    assert problem.found == (
        "the layout needs 10 nodes: 2 with 4 × NVIDIA GB300 NVL72 for prefill, 8 with 8 × Huawei Ascend 950DT for decode"
    )
    assert planned("cluster=gb300_ascend950", "deploy.prefill.replicas=2", problem.fix)


def test_hosts_are_all_of_them_or_none(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    (problem,) = problems_of(planned, "cluster=h200_pd", "cluster.hosts=[a]")
    assert "all of them or none" in problem.why
    assert planned("cluster=h200_pd", "cluster.hosts=[a, b]")


# a file of the user's own


def test_a_users_file_works(site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]) -> None:
    spec, plan = planned("cluster=mine", config_dir=site(MINE))
    assert spec.cluster.name == "mine" and spec.scheduler.max_num_seqs == 16  # type: ignore[attr-defined]
    assert (plan.layout.num_ranks, plan.hardware.option) == (8, "h200")


def test_the_command_line_wins_over_a_file(
    site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]
) -> None:
    overrides = ("hardware=b200", "parallel=ep4", "scheduler.max_num_seqs=8")
    spec, plan = planned("cluster=mine", *overrides, config_dir=site(MINE))
    assert (plan.layout.num_ranks, plan.hardware.option, spec.scheduler.max_num_seqs) == (4, "b200", 8)


def test_a_file_wins_over_the_primary_one(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    assert planned("cluster=h200_node")[1].choices["parallel"] == "ep8"  # conf/config.yaml says single


def test_a_key_renamed_since_is_named_with_its_place(site: Callable[[str], Path]) -> None:
    folder = site(MINE.replace("max_num_seqs", "max_num_sequences"))
    command = [sys.executable, "-m", "deepinfer", "plan", "--config-dir", str(folder), "cluster=mine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == ExitCode.CONFIG
    assert "scheduler.max_num_sequences=16" in done.stderr
    assert "type: scheduler.max_num_seqs=16" in done.stderr
    assert re.search(rf"{re.escape(str(folder / 'cluster' / 'mine.yaml'))}\D{{1,8}}8\b", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [("override /hardware", "override hardware"), ("# @package _global_\n", "")],
    ids=["no slash", "no global package"],
)
def test_an_override_that_reaches_no_group(
    site: Callable[[str], Path], planned: Callable[..., object], old: str, new: str
) -> None:
    (problem,) = problems_of(planned, "cluster=mine", config_dir=site(MINE.replace(old, new)))
    assert "mine.yaml" in problem.found
    assert "# @package _global_" in f"{problem.why} {problem.fix}" and "/hardware" in f"{problem.found} {problem.fix}"


def test_a_layout_in_a_file_that_no_side_reads(site: Callable[[str], Path], planned: Callable[..., object]) -> None:
    text = MINE.replace(
        "  - override /parallel: ep8", "  - override /deploy: disaggregated\n  - override /parallel: ep8"
    )
    (problem,) = problems_of(planned, "cluster=mine", "model=v41_tiny", config_dir=site(text))[:1]
    assert problem.asked == "parallel=ep8" and "parallel@deploy.decode.parallel=ep8" in problem.fix


@pytest.mark.parametrize(
    ("old", "new", "asked", "found"),
    [
        ("verified: untested", "verified: maybe", "cluster.verified=maybe", "wanted untested, or a mapping of date"),
        ("verified: untested", "verified: {date: yesterday}", "cluster.verified.date=yesterday", "like 2026-11-30"),
        ("nodes: 1", "nodes: 0", "cluster.nodes=0", "at least 1"),
        ("interface: null", "interfaces: null", "cluster.interfaces=null", "no key 'interfaces'"),
        ("kind: site", "kind: sight", "cluster.kind=sight", "no such kind"),
    ],
)
def test_mistakes_in_a_site(
    site: Callable[[str], Path], planned: Callable[..., object], old: str, new: str, asked: str, found: str
) -> None:
    problems = problems_of(planned, "cluster=mine", config_dir=site(MINE.replace(old, new)))
    assert any(problem.asked == asked and found in problem.found for problem in problems), problems


def test_text_of_a_site_is_taken_as_typed() -> None:
    overrides = ("cluster.name=12E34", "cluster.interface=0x10", "cluster.hosts=[gpu-01.lan]")
    cluster = load_with_choices("cluster=h200_node", *overrides)[0].cluster
    assert (cluster.name, cluster.interface, cluster.hosts) == ("12E34", "0x10", ("gpu-01.lan",))  # type: ignore[attr-defined]
