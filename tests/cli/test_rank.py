"""`deepinfer rank`: the files of a launch really started, and every way in which a rank is not the plan's."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer.api import LLM
from deepinfer.cli import rank
from deepinfer.cli.generate import DEMO
from deepinfer.cli.main import main
from deepinfer.config.probes import Device
from deepinfer.config.runnable import many_ranks
from deepinfer.engine import unbuilt

SHORT = ("model=v41_tiny", "task.run=generate", "sampling.max_tokens=12")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Launches: one rank here, one by torchrun, two ranks, and two nodes of eight GPUs."""
    two_nodes = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
    python = f"launcher.python={sys.executable}"
    made = {
        "local": (*SHORT, "launcher=local"),
        "torchrun": (*SHORT, "launcher=torchrun", python),
        "pair": (*SHORT, "parallel=ep2"),
        "cluster": (*two_nodes, "launcher=slurm"),
    }
    found = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, overrides in made.items():
        assert main(["launch", *overrides, f"out={found[name]}"]) == 0
    return found


@pytest.fixture
def start(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a rank in this process; its exit code, stdout and stderr."""
    monkeypatch.setattr(rank, "GRACE_S", 0.0)

    def run(name: str, *words: str, role: str = "all", replica: str = "0", **variables: int) -> tuple[int, str, str]:
        for variable in VARIABLES:
            monkeypatch.delenv(variable, raising=False)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))
        code = main(["rank", f"plan={folders[name] / 'plan.json'}", f"role={role}", f"replica={replica}", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def answers() -> list[str]:
    with LLM(*SHORT[:1], SHORT[2]) as llm:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in DEMO])
    return [output.message.content for output in outputs]


def test_the_local_script_answers_as_the_library_does(folders: dict[str, Path]) -> None:
    done = subprocess.run([folders["local"] / "run.sh"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("deepinfer: rank 0 of 1 of all-0 (device 0 of node 0)")
    for prompt, answer in zip(DEMO, answers()):
        assert f"> {prompt}\n{answer}\n" in done.stdout


def test_the_torchrun_script(folders: dict[str, Path]) -> None:
    script = folders["torchrun"] / "all-0" / "node-0.sh"
    done = subprocess.run([script], capture_output=True, text=True, check=False, timeout=120, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "deepinfer: rank 0 of 1 of all-0" in done.stderr
    assert all(f"> {prompt}\n" in done.stdout for prompt in DEMO)


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("local", {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}),
        ("local", {"WORLD_SIZE": 1}),
        ("pair", {}),
        ("pair", {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}),
        ("cluster", {"RANK": 0, "WORLD_SIZE": 8, "LOCAL_RANK": 0}),
    ],
)
def test_a_world_of_another_size(start: Any, name: str, variables: dict[str, int]) -> None:
    code, out, err = start(name, **variables)
    assert (code, out) == (3, "")
    assert "WORLD_SIZE is" in err and "all-0 has" in err and "Traceback" not in err


def test_rank_0_speaks_and_the_others_end_alike(start: Any) -> None:
    assert start("pair", RANK=0, WORLD_SIZE=3, LOCAL_RANK=0)[0] == 3
    assert start("pair", RANK=1, WORLD_SIZE=3, LOCAL_RANK=1) == (3, "", "")
    code, _, err = start("cluster", RANK=8, WORLD_SIZE=24, LOCAL_RANK=0)  # the first of another node points there
    assert code == 3 and err.splitlines() == [
        "deepinfer: rank 8 does not start; the first rank of its world or node says why"
    ]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"RANK": "-1", "WORLD_SIZE": 2}, ["RANK='-1'", "no whole number"]),
        ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": 70000}, ["MASTER_PORT=70000", "no port", "from 1 to 65535"]),
        ({"RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": 0}, ["MASTER_PORT=0", "no port"]),
        ({"RANK": "x", "WORLD_SIZE": "2.0", "LOCAL_RANK": "one"}, ["RANK='x'", "WORLD_SIZE='2.0'", "LOCAL_RANK='one'"]),
        ({"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": "-1"}, ["LOCAL_RANK='-1'"]),
        ({"RANK": 2, "WORLD_SIZE": 2}, ["RANK=2", "WORLD_SIZE is 2", "2 ranks count from 0 to 1"]),
        ({"RANK": 0, "WORLD_SIZE": 0}, ["RANK=0", "WORLD_SIZE is 0"]),
        (
            {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 1},
            ["LOCAL_RANK=1", "LOCAL_WORLD_SIZE is 1"],
        ),
    ],
)
def test_variables_that_no_launcher_sets(start: Any, variables: dict[str, Any], told: list[str]) -> None:
    """The rank that has them says so itself, whichever it is."""
    code, out, err = start("pair", **variables)
    assert (code, out) == (3, "")
    assert all(text in err for text in told) and "Traceback" not in err


def test_whitespace_in_a_variable_is_nobodys_fault(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "missing", lambda plan, facts: None)
    assert "rank 8 of 16" in start("cluster", RANK=8, WORLD_SIZE=16, LOCAL_RANK="0\n")[2]


def test_another_number_of_ranks_a_node(start: Any) -> None:
    code, _, err = start("cluster", RANK=4, WORLD_SIZE=16, LOCAL_RANK=0)
    assert code == 3
    assert "LOCAL_RANK is 0, and rank 4 is number 4 of its node in the plan; all-0 has 8 ranks a node" in err


def refuse_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on hardware of which a run takes one rank."""
    monkeypatch.setattr(unbuilt, "many_ranks", lambda count, kinds, fix: many_ranks(count, ["ascend"], fix))


def test_devices_are_looked_for_on_this_node_only(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = start("cluster", RANK=8, WORLD_SIZE=16, LOCAL_RANK=0)
    assert code == 4
    assert "node 1 of the plan needs 8 × NVIDIA H200" in err and "no accelerator" in err
    assert start("cluster", RANK=9, WORLD_SIZE=16, LOCAL_RANK=1) == (4, "", "")
    refuse_ranks(monkeypatch)
    gpu = Device(vendor="nvidia", name="NVIDIA H200", memory_bytes=150 * 10**9, compute_capability="9.0")
    monkeypatch.setattr(rank, "missing", lambda plan, facts: None if plan.layout.roles[0].num_ranks == 8 else gpu.name)
    code, _, err = start("cluster", RANK=8, WORLD_SIZE=16, LOCAL_RANK=0)
    assert code == 1 and "rank 8 of 16 of all-0 (device 0 of node 1)" in err  # the devices are there, the code is not


def test_ranks_on_devices_are_refused_by_name(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "missing", lambda plan, facts: None)
    refuse_ranks(monkeypatch)
    code, out, err = start("cluster", RANK=0, WORLD_SIZE=16, LOCAL_RANK=0)
    assert (code, out) == (1, "")
    assert "parallel: 16 ranks" in err and "several ranks on CPUs and NVIDIA GPUs only" in err
    code, out, err = start("cluster", RANK=1, WORLD_SIZE=16, LOCAL_RANK=1)
    assert (code, out) == (1, "") and len(err.splitlines()) == 1 and "rank 1 of 16" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"role": "decode"}, "there is role=all replica=0"),
        ({"replica": "1"}, "there is role=all replica=0"),
        ({"replica": "00"}, "not in the plan"),
    ],
)
def test_a_role_that_is_not_in_the_plan(start: Any, words: dict[str, str], told: str) -> None:
    code, _, err = start("local", **words)
    assert code == 2 and told in err


@pytest.mark.parametrize(
    "word", ["hardware=h200", "sampling.seed=1", "model.path=/x", "--cfg=job", "format=json", "-m"]
)
def test_a_rank_has_no_options(start: Any, word: str) -> None:
    code, out, err = start("local", word)
    assert code == 2 and "rank" in out + err and "Traceback" not in err


def test_all_words_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", "plan=x"]) == 2
    assert "no role= or replica=" in capsys.readouterr().err
    assert main(["task=rank"]) == 2
    assert "no plan=, role= or replica=" in capsys.readouterr().err


def test_another_checkpoint_than_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    model = tmp_path / "model"
    shutil.copytree(Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a", model)
    assert main(["launch", f"model.path={model}", "task.run=generate", f"out={tmp_path / 'out'}"]) == 0
    for shard in model.glob("*.safetensors"):
        shard.unlink()
    capsys.readouterr()
    assert main(["rank", f"plan={tmp_path / 'out' / 'plan.json'}", "role=all", "replica=0"]) == 5
    assert str(model) in capsys.readouterr().err
