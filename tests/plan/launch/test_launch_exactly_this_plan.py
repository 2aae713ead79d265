"""What the files start is what the plan says: parsed back, not searched for."""

import ast
import re
import shlex
from collections.abc import Callable

import pytest
import yaml

from deepinfer.plan.launch.job import PLAN_FILE, Rendered
from deepinfer.plan.launch.worlds import World, worlds_of
from deepinfer.plan.types import Plan

Case = Callable[[str], tuple[Plan, Rendered]]
Started = dict[tuple[str, str], list[int]]  # (role, replica) → ranks of each node


def options(command: list[str]) -> dict[str, str]:
    """--name=value and name=value words."""
    return {key.lstrip("-"): value for key, equals, value in (word.partition("=") for word in command) if equals}


def words_of(script: str) -> list[str]:
    """The words of a script's command, which its last statement is."""
    return shlex.split(script.replace("\\\n", " ").splitlines()[-1])


def planned(plan: Plan) -> Started:
    """From the ranks themselves, by other means than `worlds_of`."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for rank in plan.layout.ranks:
        nodes = found.setdefault((rank.role, str(rank.replica)), {})
        nodes[rank.node] = nodes.get(rank.node, 0) + 1
    return {world: [nodes[node] for node in sorted(nodes)] for world, nodes in found.items()}


def started_by_scripts(rendered: Rendered) -> Started:
    found: Started = {}
    for name, text in sorted(rendered.files.items()):
        if name.endswith(".sh"):
            given = options(words_of(text))
            nodes = found.setdefault((given["role"], given["replica"]), [])
            assert given["node-rank"] == str(len(nodes))
            assert given["plan"] == f"$folder/{PLAN_FILE}"
            nodes.append(int(given["nproc-per-node"]))
            assert int(given["nnodes"]) >= len(nodes)
    return found


def started_by_slurm(rendered: Rendered) -> Started:
    found: Started = {}
    for name, text in rendered.files.items():
        if name.endswith(".sbatch"):
            job = options(re.findall(r"^#SBATCH (\S+)$", text, re.MULTILINE))
            given = options(shlex.split(text[text.index("srun") :]))
            nodes, tasks, per_node = (int(job[key]) for key in ("nodes", "ntasks", "ntasks-per-node"))
            assert given["distribution"] == f"plane={per_node}"  # fills nodes one after the other, per_node to each
            full, rest = divmod(tasks, per_node)
            found[given["role"], given["replica"]] = [per_node] * full + [rest] * bool(rest)
            assert len(found[given["role"], given["replica"]]) == nodes
            assert f"sbatch {name}\n" in rendered.files["submit.sh"]
    return found


def started_by_kubernetes(rendered: Rendered) -> Started:
    found: Started = {}
    for name in yaml.safe_load(rendered.files["kustomization.yaml"])["resources"]:
        data = yaml.safe_load(rendered.files[name])
        if data["kind"] == "Service":
            continue
        spec = data["spec"]
        template = spec["leaderWorkerTemplate"]
        (container,) = template["workerTemplate"]["spec"]["containers"]
        (leader,) = template.get("leaderTemplate", template["workerTemplate"])["spec"]["containers"]
        assert all(leader[name] == container[name] for name in ("command", "env", "image", "resources"))
        shell, flag, script = container["command"]
        given = options(words_of(script))
        assert (shell, flag, given["nnodes"]) == ("sh", "-c", str(template["size"]))
        assert container["resources"]["limits"]["nvidia.com/gpu"] == given["nproc-per-node"]
        assert (given["replica"], given["node-rank"]) == ("$REPLICA", "$LWS_WORKER_INDEX")
        for replica in range(spec["replicas"]):
            found[given["role"], str(replica)] = [int(given["nproc-per-node"])] * template["size"]
    return found


def started_by_ray(rendered: Rendered) -> Started:
    module = ast.parse(rendered.files["start.py"])
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    ports = [port for _, _, port, *_ in values["WORLDS"]]
    assert len(set(ports)) == len(ports)
    return {(role, str(replica)): list(nodes) for role, replica, _, _, nodes in values["WORLDS"]}


READERS = {
    "torchrun": started_by_scripts,
    "slurm": started_by_slurm,
    "kubernetes": started_by_kubernetes,
    "ray": started_by_ray,
}


@pytest.mark.parametrize("name", READERS)
def test_worlds_nodes_and_ranks(name: str, case_of: Case) -> None:
    plan, rendered = case_of(name)
    assert READERS[name](rendered) == planned(plan)


@pytest.mark.parametrize("name", READERS)
def test_a_node_that_is_not_full(name: str, launch_of: Callable[..., tuple[Plan, Rendered]]) -> None:
    """Twelve ranks on nodes of eight: a second node of four; the pods of one LeaderWorkerSet cannot say so."""
    overrides = ("hardware=h200", "parallel=ep4", "parallel.attention_dp=12", f"launcher={name}")
    if name == "kubernetes":
        with pytest.raises(ValueError, match="nodes of 8 and of 4 ranks"):
            launch_of(*overrides, "launcher.image=x")
        return
    plan, rendered = launch_of(*overrides)
    assert planned(plan) == {("all", "0"): [8, 4]} == READERS[name](rendered)


@pytest.mark.parametrize("name", [*READERS, "local"])
def test_the_plan_travels_whole(name: str, case_of: Case) -> None:
    plan, rendered = case_of(name)
    assert Plan.from_json(rendered.files[PLAN_FILE]) == plan
    assert plan.rank_digest in rendered.files["README.md"]
    started = [text for file, text in rendered.files.items() if file.endswith((".sh", ".sbatch", ".py", ".yaml"))]
    assert any(plan.rank_digest in text for text in started)
    told = "".join(started)
    assert "hardware=" not in told and "parallel=" not in told  # nothing is composed again


def test_worlds(case_of: Case) -> None:
    plan, _ = case_of("slurm")
    assert [(world.name, world.size, world.first_rank, world.first_node) for world in worlds_of(plan)] == [
        ("prefill-0", 4, 0, 0),
        ("prefill-1", 4, 4, 1),
        ("decode-0", 64, 8, 2),
    ]
    assert worlds_of(plan)[2] == World(
        index=2, role="decode", replica=0, first_rank=8, first_node=2, node_ranks=(4,) * 16
    )


def test_worlds_meet_on_ports_of_their_own(case_of: Case) -> None:
    _, rendered = case_of("slurm")
    ports = [re.search(r"MASTER_PORT=(\d+)", text) for name, text in rendered.files.items() if name.endswith(".sbatch")]
    assert [port.group(1) for port in ports if port] == ["29500", "29501", "29502"]
