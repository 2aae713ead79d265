"""`deepinfer plan` as a user types it: exit codes, forms of output, and never torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deepinfer.cli.main import main

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


@pytest.mark.parametrize(
    ("key", "arguments", "lines"),
    [
        (
            "model.dtype",
            (),
            ["model.dtype = bfloat16", "asked     auto (conf/model/auto.yaml)", "because   the release computes in it"],
        ),
        ("parallel.expert", (), ["parallel.expert = 64", "asked     64 (conf/parallel/ep64.yaml)"]),
        (
            "parallel.expert",
            ("parallel.expert=32",),
            ["parallel.expert = 32", "asked     32 (command line: parallel.expert=32)"],
        ),
        ("sampling.top_k", ("sampling=greedy",), ["asked     0 (conf/sampling/default.yaml)"]),
        ("sampling.temperature", ("sampling=greedy",), ["asked     0.0 (conf/sampling/greedy.yaml)"]),
        ("model.name", (), ["model.name = v41_flash", "asked     auto (conf/model/auto.yaml)"]),
        ("cache.num_blocks", ("cache.num_blocks=9",), ["cache.num_blocks = 9"]),
        ("ops", (), ["ops.linear = ascend", "ops.attention = ascend"]),
        ("attention", (), ["ops.attention = ascend", "because   first of the chip's list"]),
        ("workspace", (), ["because   estimate"]),
        ("memory", (), ["memory.embed = 1,323,827,200 B a rank", "because   estimate"]),
        ("model", (), ["model = v41_flash", "asked     auto (conf/config.yaml)", "second    v41_tiny"]),
        ("hardware", (), ["asked     ascend950 (command line: hardware=ascend950)"]),
        ("model.revision", ("model.revision=abc",), ["asked     abc"]),
        (
            "deploy.decode.parallel.expert",
            ("deploy=disaggregated", "parallel@deploy.decode.parallel=ep64", "parallel@deploy.prefill.parallel=ep8"),
            ["asked     64 (conf/parallel/ep64.yaml)"],
        ),
    ],
)
def test_explain(capsys: pytest.CaptureFixture[str], key: str, arguments: tuple[str, ...], lines: list[str]) -> None:
    assert main(["plan", *LITERAL, *arguments, f"explain={key}"]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        assert line in said or any(text.startswith(line) for text in said)


def test_explain_of_an_unknown_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LITERAL, "explain=model.dtpye"]) == 2
    assert "plan explain=model.dtype" in capsys.readouterr().err


def test_explain_of_a_number_that_the_plan_settled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LITERAL, "format=json"]) == 0
    blocks = json.loads(capsys.readouterr().out)["capacity"]["num_blocks"]
    assert main(["plan", *LITERAL, "explain=cache.num_blocks"]) == 0
    assert capsys.readouterr().out.startswith(
        f"cache.num_blocks = {blocks}\n  asked     auto (conf/cache/paged.yaml)\n"
    )


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *LITERAL, "explain=model.dtype", "format=json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["key"], told["value"], told["asked"]) == ("model.dtype", "bfloat16", "auto")
    assert told["origin"] == "conf/model/auto.yaml" and told["because"] and told["second"] == "float32"
    assert main(["plan", *LITERAL, "explain=model.dtype", "format=mermaid"]) == 2
    assert "plan explain=model.dtype" in capsys.readouterr().err
