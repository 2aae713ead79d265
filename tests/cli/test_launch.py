"""`deepinfer launch` as a user types it: what it writes, what it leaves alone, and what it says."""

import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.api import LLM
from deepinfer.cli.launch_folder import write_folder
from deepinfer.cli.main import main
from deepinfer.config.errors import Refused
from deepinfer.plan.types import Plan

CLUSTERS = Path(__file__).parents[2] / "conf" / "cluster"
TINY = ("model=v41_tiny", "task.run=generate")


def tree(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()
    }


def test_files_and_the_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my launch"
    assert main(["launch", *TINY, f"out={out}"]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[0].startswith("launch   v41_tiny: 1 rank on 1 node, task generate, plan ")
    assert told.out.splitlines()[-2:] == [f"type     cd '{out}'", "type     ./run.sh"]
    assert told.err == ""
    assert tree(out).keys() == {"plan.json", "README.md", "run.sh", "files.sha256"}
    assert (out / "run.sh").stat().st_mode & 0o111 and not (out / "plan.json").stat().st_mode & 0o111
    assert subprocess.run(["sha256sum", "--quiet", "-c", "files.sha256"], cwd=out, check=False).returncode == 0
    assert Plan.from_json((out / "plan.json").read_bytes()).task == "generate"


def test_without_out_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "hardware=h200", "parallel=ep64", "launcher=torchrun"]) == 0
    told = capsys.readouterr()
    assert "would    write 11 files" in told.out and "… and 2 more" in told.out
    assert "type     the same command with out=DIR" in told.out
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_serves_says_where_and_with_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = [word for word in TINY if not word.startswith("task.run")]
    assert main(["launch", *tiny, "task.run=serve", "serving.port=9000", f"out={tmp_path / 'out'}"]) == 0
    plan = Plan.from_json((tmp_path / "out" / "plan.json").read_bytes())
    assert plan.task == "serve" and plan.serving is not None and plan.serving.port == 9000
    assert "at 127.0.0.1 port 9000" in (tmp_path / "out" / "README.md").read_text()
    assert plan.asked_sampling == ()
    capsys.readouterr()
    assert main(["launch", *tiny, "task.run=serve", "serving.host=0.0.0.0", f"out={tmp_path / 'open'}"]) == 2
    assert "serving.allow_open=true" in capsys.readouterr().err


def test_its_own_files_are_replaced_and_what_is_no_longer_needed_goes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["launch", *TINY, "launcher=torchrun", f"out={out}"]) == 0
    assert (out / "all-0" / "node-0.sh").is_file()
    assert main(["launch", *TINY, f"out={out}"]) == 0
    assert tree(out).keys() == {"plan.json", "README.md", "run.sh", "files.sha256"}
    assert not (out / "all-0").exists()
    assert main(["launch", *TINY, "sampling.seed=7", f"out={out}"]) == 0
    assert Plan.from_json((out / "plan.json").read_bytes()).sampling.seed == 7


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("a stranger", "notes.txt"),
        ("an edited file", "run.sh"),
        ("no list", "plan.json and run.sh"),
        ("a broken link", "link"),
        ("a link to the same", "run.sh"),
    ],
)
def test_nothing_of_anybody_else_is_touched(what: str, named: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_folder(out, {"plan.json": "{}\n", "run.sh": "#!/bin/sh\n"})
    if what == "a stranger":
        (out / "notes.txt").write_text("mine")
    elif what == "an edited file":
        (out / "run.sh").write_text("#!/bin/bash\n")
    elif what == "no list":
        (out / "files.sha256").unlink()
    elif what == "a broken link":
        (out / "link").symlink_to(tmp_path / "nowhere")
    else:
        (out / "run.sh").rename(tmp_path / "run.sh")
        (out / "run.sh").symlink_to(tmp_path / "run.sh")
    before = tree(out)
    with pytest.raises(Refused, match=f"left there so: {named}; launch replaces only its own files"):
        write_folder(out, {"plan.json": "[]\n"})
    assert tree(out) == before


def test_out_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["launch", *TINY, f"out={tmp_path / 'file'}"]) == 2
    assert "it is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_relative_checkpoint_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
    monkeypatch.chdir(fixture.parent)
    assert main(["launch", "model.path=tiny_a", "task.run=generate", f"out={tmp_path}"]) == 0
    assert Plan.from_json((tmp_path / "plan.json").read_bytes()).model.location == str(fixture)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("hardware=h200",), 6, "type: parallel=ep4"),
        (("launcher=kubernetes",), 2, "launcher.image="),
        (("task.run=bench",), 2, "serve or generate"),
        (("launcher=slurm", "launcher.partitoin=x"), 2, "launcher.partition"),
        (("launcher=local", "hardware=h200", "parallel=ep64", "model.weights=dummy"), 3, "type: launcher=torchrun"),
        (("launcher.env.A=true",), 2, "type: 'launcher.env.A=\"true\"'"),
        (("launcher.env.A=1.5", "launcher.env.HF_HUB_X=false"), 2, "type: 'launcher.env.A=\"1.5\"'"),
        (("format=json",), 2, "launch takes no format="),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str) -> None:
    assert main(["launch", *arguments]) == code
    told = capsys.readouterr()
    assert words in told.out + told.err and "Traceback" not in told.err


def test_a_run_here_is_not_a_launch_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "launcher=slurm", "executor=distributed"]) == 2
    told = capsys.readouterr().err
    assert "type: deepinfer launch launcher=slurm executor=distributed task.run=generate out=launched" in told
    with pytest.raises(
        ValueError, match=r"deepinfer launch model=v41_tiny launcher=ray task.run=generate out=launched"
    ):
        LLM("model=v41_tiny", "launcher=ray")
    assert main(["hardware=virtual", "launcher=torchrun"]) == 2


def test_launching_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from deepinfer.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('torch', 'ray', 'numba', 'safetensors') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, "launch", "hardware=h200", "parallel=ep8", "launcher=ray", f"out={tmp_path}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.sample(3)
@pytest.mark.parametrize("cluster", sorted(path.stem for path in CLUSTERS.glob("*.yaml")))
def test_every_checked_in_cluster_has_a_launch(cluster: str, tmp_path: Path) -> None:
    """On Kubernetes, and by torchrun with a script for each of its nodes."""
    assert (
        main(["launch", f"cluster={cluster}", "launcher=kubernetes", "launcher.image=x", f"out={tmp_path / 'k8s'}"])
        == 0
    )
    assert main(["launch", f"cluster={cluster}", "launcher=torchrun", f"out={tmp_path / 'nodes'}"]) == 0
    plan = Plan.from_json((tmp_path / "nodes" / "plan.json").read_bytes())
    scripts = len(list((tmp_path / "nodes").glob("*/node-*.sh")))
    on_nodes = {(rank.role, rank.replica, rank.node) for rank in plan.layout.ranks}
    assert scripts == len(on_nodes)
    assert (tmp_path / "k8s" / "plan.json").is_file()
