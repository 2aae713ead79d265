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
CLUSTERS = [name for name in options("cluster") if name not in ("none", "blank")]
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
    assert len(plan.warnings) == (
        name == "gb300_ascend950"
    )  # two vendors; none about users, who have to wait for nothing
    if plan.model.name == "v41_flash":  # each says how fast its users read, and takes as many as that allows
        wanted = spec.workload.tokens_per_s_per_user  # type: ignore[attr-defined]
        assert 20 <= wanted <= plan.cost.figure("tokens_per_s_per_user").value


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


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_verified_commit_looks_like_one(name: str) -> None:
    verified = load_with_choices(f"cluster={name}")[0].cluster.verified  # type: ignore[attr-defined]
    assert not isinstance(verified, Verified) or re.fullmatch(r"[0-9a-f]{7,40}", verified.commit)


def git(*words: str) -> str | None:
    """What git says of this checkout; None where it is none of its own, or git refuses."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def first_day() -> str:
    """The day on which the history at hand begins; empty for a shallow clone, or a source archive."""
    shallow, folder = git("rev-parse", "--is-shallow-repository"), git("rev-parse", "--show-toplevel")
    if shallow != "false" or not folder or Path(folder).resolve() != ROOT.resolve():
        return ""
    return min((git("log", "--max-parents=0", "--format=%cs") or "").split(), default="")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CLUSTERS)
def test_a_verified_commit_exists(name: str) -> None:
    """Where its history is at hand: a clone that is whole, and was not squashed since that day."""
    verified = load_with_choices(f"cluster={name}")[0].cluster.verified  # type: ignore[attr-defined]
    if not isinstance(verified, Verified):
        return
    day = first_day()
    if not day or day > verified.date:
        pytest.skip("the history of that day is not here")
    assert git("cat-file", "-e", f"{verified.commit}^{{commit}}") is not None


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
    assert problem.fix == "deploy.prefill.replicas=1"
    assert planned("cluster=gb300_ascend950", problem.fix)


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (("cluster=h200_pd", "deploy.decode.replicas=3"), "deploy.decode.replicas=1"),
        (("cluster=h200_pd", "cluster.nodes=3", "deploy.decode.replicas=3"), "deploy.decode.replicas=2"),
        (("cluster=h200_pd", "parallel@deploy.decode.parallel=ep64"), "parallel@deploy.decode.parallel=ep8"),
        (("cluster=h200_pd", "cluster.nodes=1"), ""),
        (("cluster=h200_pd", "cluster.nodes=auto", "cluster.hosts=[a]"), ""),
    ],
)
def test_what_fits_is_a_smaller_layout_and_never_another_site(
    planned: Callable[..., tuple[Spec, Plan]], overrides: tuple[str, ...], fix: str
) -> None:
    (problem,) = problems_of(planned, *overrides)
    assert problem.asked.startswith("cluster.nodes=") and problem.fix == fix
    if fix:
        key = fix.partition("=")[0]
        assert planned(*(each for each in overrides if not each.startswith(f"{key}=")), fix)


def test_hosts_are_all_of_them_or_none(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    (problem,) = problems_of(planned, "cluster=h200_pd", "cluster.hosts=[a]")
    assert "all of them or none" in problem.why and problem.fix == "cluster.hosts=[a,HOST2]"
    assert planned("cluster=h200_pd", problem.fix)
    (problem,) = problems_of(planned, "cluster=h200_pd", "cluster.hosts=[a, b, c]")
    assert problem.fix == "cluster.nodes=auto"
    assert planned("cluster=h200_pd", "cluster.hosts=[a, b, c]", problem.fix)


def test_a_side_on_the_chip_of_the_top_level(planned: Callable[..., tuple[Spec, Plan]]) -> None:
    (problem,) = problems_of(planned, "cluster=h200_pd", "deploy.decode.hardware.memory_bytes=100GB")
    choice, key = problem.fix.split()
    assert (choice, key) == ("hardware@deploy.decode.hardware=h200", "deploy.decode.hardware.memory_bytes=100GB")
    layout = planned("cluster=h200_pd", choice, key)[1].layout
    assert layout.role("prefill").hardware.usable_bytes > 100e9 > layout.role("decode").hardware.usable_bytes


# a file of the user's own


def test_a_users_file_works(site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]) -> None:
    spec, plan = planned("cluster=mine", config_dir=site(MINE))
    assert spec.cluster.name == "mine" and spec.scheduler.max_num_seqs == 16  # type: ignore[attr-defined]
    assert (plan.layout.num_ranks, plan.hardware.option) == (8, "h200")


SHORT = """\
# @package _global_
# A site of mine.
defaults:
  - blank
  - override /hardware: h200
  - override /parallel: ep8
"""


def test_a_short_file_works(site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]) -> None:
    folder = site(SHORT)
    spec, plan = planned("cluster=mine", config_dir=folder)
    assert spec.cluster == SiteCluster(name=None, nodes="auto", hosts=(), interface=None, verified="untested")
    assert plan.layout.num_ranks == 8
    problems = problems_of(planned, "cluster=mine", "cluster.hosts=[a]", "parallel=ep16", config_dir=folder)
    assert [problem.why for problem in problems] == ["1 node is all that the site has"]
    planned("cluster=mine", "cluster.hosts=[a,b]", "parallel=ep16", config_dir=folder)


@pytest.mark.parametrize(
    ("text", "line", "fix"),
    [
        (
            MINE.replace(SITE, "cluster: {nodes: 1}\n"),
            10,
            "write '- blank' as the first entry of the defaults list of ",
        ),
        (MINE.replace("hosts: [], ", ""), 10, "write '- blank' as the first entry of the defaults list of "),
        ("# mine\ncluster: {kind: site}\n", 2, "write '# @package _global_' as the first line of "),
        (SHORT.partition("\n")[2], 1, "write '# @package _global_' as the first line of "),
    ],
    ids=["no kind", "no hosts", "keys inside cluster", "no header"],
)
def test_what_a_file_lacks_is_written_out(
    site: Callable[[str], Path], planned: Callable[..., object], text: str, line: int, fix: str
) -> None:
    folder = site(text)
    file = str(folder / "cluster" / "mine.yaml")
    problem = next(each for each in problems_of(planned, "cluster=mine", config_dir=folder) if each.file)
    assert (problem.file, problem.line) == (file, line)
    assert problem.fix.startswith(f"{fix}{file}")


def test_a_layout_that_is_no_option(site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]) -> None:
    sides = "  - override /deploy: disaggregated\n  - override /parallel@deploy.prefill.parallel: ep8\n"
    sides += "  - override /parallel@deploy.decode.parallel: ep24\n"
    folder = site(SHORT.replace("  - override /parallel: ep8\n", sides))
    (problem,) = problems_of(planned, "cluster=mine", config_dir=folder)
    assert (problem.file, problem.line) == (str(folder / "cluster" / "mine.yaml"), 8)
    place = "deploy.decode.parallel"
    assert problem.fix == f"parallel@{place}=single {place}.attention_dp=24 {place}.expert=24"
    _, plan = planned("cluster=mine", *problem.fix.split(), config_dir=folder)
    assert plan.layout.role("decode").num_ranks == 24
    (problem,) = problems_of(planned, "parallel=ep24", "hardware=h200")
    assert problem.fix == "parallel.attention_dp=24 parallel.expert=24"


@pytest.mark.parametrize(
    ("layout", "others", "fix"),
    [
        ("ep63", ("hardware=h200",), "parallel.attention_dp=48 parallel.expert=48"),
        ("ep63", ("hardware=h200", "speculation=dspark"), "parallel=ep32"),
        ("ep24", ("hardware=h200", "speculation=dspark"), "parallel=ep16"),
        ("ep9", (), "parallel=ep8"),
        ("ep65", ("hardware=h200", "parallel.redundant_experts=6"),
         "parallel.attention_dp=65 parallel.expert=65"),
        ("dp3", ("hardware=h200", "model=v41_tiny"), "parallel.attention_dp=3"),
    ],
)  # fmt: skip
def test_the_layout_that_is_offered_divides_the_experts(
    planned: Callable[..., tuple[Spec, Plan]], layout: str, others: tuple[str, ...], fix: str
) -> None:
    (problem,) = problems_of(planned, f"parallel={layout}", *others)
    assert problem.fix == fix
    degree = re.sub(r"\D+", "", layout)
    assert (f"not divisible by {degree}" in problem.why) == (f"={degree}" not in fix)
    _, plan = planned(*others, *fix.split(), "model.weights=dummy")
    assert plan.layout.num_ranks > 1


def test_a_key_of_the_launcher_among_those_of_the_site(
    site: Callable[[str], Path], planned: Callable[..., object]
) -> None:
    folder = site(SHORT + "  - override /launcher: slurm\ncluster:\n  partition: h200\n")
    (problem,) = problems_of(planned, "cluster=mine", config_dir=folder)
    assert (problem.asked, problem.fix) == ("cluster.partition=h200", "launcher.partition=h200")


def test_a_site_with_settings_for_more_than_one_launcher(
    site: Callable[[str], Path], planned: Callable[..., tuple[Spec, Plan]]
) -> None:
    """Keys of a launcher are in an option of their own, which another launcher does not see; all are checked."""
    folder = site(SHORT + "  - override /launcher: slurm\nlauncher: {partition: h200}\n")
    file = folder / "cluster" / "mine.yaml"
    (problem,) = problems_of(planned, "cluster=mine", "launcher=torchrun", config_dir=folder)
    assert (problem.file, problem.line) == (str(file), 8)
    assert f"move it to {folder}/launcher/NAME.yaml, below 'defaults: [slurm, _self_]'" in problem.fix
    (folder / "launcher").mkdir()
    (folder / "launcher" / "ours.yaml").write_text("# Ours.\ndefaults: [slurm, _self_]\npartition: h200\n")
    file.write_text(SHORT + "  - override /launcher: ours\n")
    assert planned("cluster=mine", config_dir=folder)[0].launcher.partition == "h200"  # type: ignore[attr-defined]
    assert planned("cluster=mine", "launcher=torchrun", config_dir=folder)[0].launcher.kind == "torchrun"
    (problem,) = problems_of(planned, "cluster=mine", "launcher.partitoin=x", config_dir=folder)
    assert problem.fix == "launcher.partition=x"


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
