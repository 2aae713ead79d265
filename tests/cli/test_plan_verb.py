"""`deepinfer plan` as a user types it: exit codes, forms of output, and never torch."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import deepinfer.cli.main as main_module
from deepinfer.cli.main import INSTEAD, main
from deepinfer.config.runnable import NOT_BUILT

CHILD = "child.py"  # a program of its own, which no verb imports
LITERAL = ("hardware=ascend950", "parallel=ep64")


def deepinfer(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "deepinfer", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
    )


def test_the_literal_plan_command(tmp_path: Path) -> None:
    done = deepinfer("plan", *LITERAL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("plan     v41_flash on 64 × Huawei Ascend 950DT")
    assert "510,286,023,000 B" in done.stdout
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_the_literal_run_prints_the_plan_and_one_sentence_and_exits_4(tmp_path: Path) -> None:
    done = deepinfer(*LITERAL, cwd=tmp_path)
    assert done.returncode == 4
    assert "v41_flash on 64 × Huawei Ascend 950DT" in done.stdout + done.stderr
    (sentence,) = [line for line in (done.stdout + done.stderr).splitlines() if "this machine has" in line]
    assert "64 × Huawei Ascend 950DT" in sentence
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", [("plan", *LITERAL), ("doctor",), ("--help",), ("plan", "parallel=ep3")])
def test_planning_imports_no_torch(verb: tuple[str, ...]) -> None:
    heavy = "torch triton numba safetensors tokenizers transformers deepseek_recipe".split()
    code = (
        "import sys; from deepinfer.cli.main import main; main(sys.argv[1:]); "
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *verb], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr.splitlines()[-1] == "[]"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LITERAL, "speculation=dspark", "format=json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["model"]["checkpoint_bytes"] == 510286023000
    assert plan["model"]["growing_bytes_per_token"] == 890
    assert plan["model"]["fixed_bytes_per_sequence"] == 3128928
    assert plan["choices"]["parallel"] == "ep64"


def test_mermaid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LITERAL, "format=mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart LR\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("hardware=h200", "parallel=ep64", "parallel.expert=7"), 3, "64 ranks are not divisible by 7"),
        (("hardware=h200",), 6, "type: parallel=ep4"),
        (("model.path=/nowhere/at/all",), 5, "the folder does not exist"),
        (("hardware=h200", "parallel=ep46"), 2, "ep64"),
        (("hardware=h200", "parallel=ep64", "scheduler.max_num_seq=3"), 2, "scheduler.max_num_seqs"),
        (("format=jsno",), 2, "format=json"),
    ],
)
def test_faults(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str) -> None:
    assert main(["plan", *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("verb", NOT_BUILT["task.kind"])
def test_a_verb_that_is_not_built_offers_another(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb]) == 1
    assert f"type: {INSTEAD[verb]}" in capsys.readouterr().err


def test_no_verb_imports_the_program_that_calls_it() -> None:
    folder = Path(main_module.__file__).parent
    trees = {file.name: ast.parse(file.read_text("utf-8")) for file in folder.glob("*.py") if file.name != CHILD}
    importers = [
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == main_module.__name__
    ]
    assert importers == []
