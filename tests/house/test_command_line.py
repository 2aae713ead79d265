"""From argv to a verb and back to an exit code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from deepinfer import __version__
from deepinfer.cli.main import main
from deepinfer.config.argv import Invocation
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.runnable import NOT_BUILT
from deepinfer.config.specs import Spec

Run = Callable[[Spec, Invocation], int]
Install = Callable[..., list[tuple[Spec, Invocation]]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a stand-in behind a verb; returns the list of its calls."""

    def put(verb: str, outcome: int | BaseException = 0) -> list[tuple[Spec, Invocation]]:
        calls: list[tuple[Spec, Invocation]] = []

        def run(spec: Spec, invocation: Invocation) -> int:
            calls.append((spec, invocation))
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        module = ModuleType(f"deepinfer.cli.{verb}")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return calls

    return put


def test_no_arguments_is_the_main_job(install: Install) -> None:
    calls = install("generate")
    assert main([]) == 0
    ((spec, invocation),) = calls
    assert (spec.task.kind, spec.hardware.kind, spec.model.name) == ("generate", "cpu", "auto")
    assert invocation.choices["hardware"] == "cpu"
    assert (invocation.verb, invocation.prompt, invocation.format) == ("generate", None, "text")


def test_verb_is_sugar_for_task(install: Install) -> None:
    calls = install("plan")
    assert main(["plan", "parallel=ep64"]) == main(["parallel=ep64", "task=plan"]) == 0
    (first, _), (second, _) = calls
    assert first == second
    assert first.parallel.num_ranks == 64


def test_strings_reach_the_verb_as_typed(install: Install) -> None:
    calls = install("generate")
    assert main(["prompt=It's ${x}, a=b", "output=a b.jsonl", "model.path=/tmp/a,b", "sampling.n=2"]) == 0
    ((spec, invocation),) = calls
    assert (invocation.prompt, invocation.output, spec.model.path) == ("It's ${x}, a=b", "a b.jsonl", "/tmp/a,b")
    assert invocation.overrides == ("sampling.n=2",)


@pytest.mark.parametrize("code", [0, 1, 3, 4, 5, 6, 7])
def test_exit_code_of_the_verb_is_ours(install: Install, code: int) -> None:
    install("generate", code)
    assert main([]) == code


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Refused([Problem(asked="a", found="b", code=ExitCode.MEMORY)]), 6, "1 problem:\n  a\n    b"),
        (ValueError("no such file"), 1, "deepinfer: no such file"),
        (FileNotFoundError(2, "No such file", "p.jsonl"), 1, "p.jsonl"),
        (KeyboardInterrupt(), 130, "deepinfer: interrupted"),
    ],
)
def test_failures_of_the_verb(
    install: Install, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, says: str
) -> None:
    install("generate", error)
    assert main([]) == code
    told = capsys.readouterr()
    assert says in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_our_own_fault_shows_where(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("generate", AssertionError("ring is full"))
    assert main([]) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told and "ring is full" in told and "fault of deepinfer" in told


USER_MISTAKES = [
    ["serv"],
    ["hello world"],
    ["--tp", "8"],
    ["hardware=h2000"],
    ["parallel=[ep2,ep4]"],
    ["speculation=null"],
    ["speculation=off"],
    ["sampling.max_token=3"],
    ["sampling.temperature=hot"],
    ["sampling.temperature=a=b"],
    ["scheduler.max_num_seqs=3,4"],
    ["cache.memory_bytes=80gib"],
    ["executor._target_=os.system"],
    ["parallel.expert=${nope}"],
    ["parallel@deploy.decode.parallel=ep2"],
    ["+cluster=nowhere"],
    ["--config-dir", "/no/such/folder"],
    ["--cfg", "jb"],
    ["--cfg", "job", "--package", "nope"],
    ["--cfg", "job", "sampling.max_token=3"],
    ["--resolve"],
    ["plan", "prompt=x"],
    ["generate", "format=json"],
    ["plan", "format=jsn"],
    ["plan", "task=generate"],
    ["prompt=x", "prompts=y"],
    ["prompt=x", "prompt=y"],
    ["task=plam"],
    ["-m", "parallel=ep2,ep46"],
    ["-m", "sampling.n=1,0"],
    ["-m", "hydra/launcher=a,b"],
    [""],
    ["="],
    ["~"],
    ["'"],
    ["a={"],
    ["sampling.stop=['"],
    ["ключ=значение"],
]


@pytest.mark.sample(15)
@pytest.mark.parametrize("argv", USER_MISTAKES, ids=" ".join)
def test_user_mistakes_exit_with_2_and_no_traceback(
    argv: list[str], install: Install, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = [install("generate"), install("plan")]
    assert main(argv) == 2
    told = capfd.readouterr()
    assert "Traceback" not in told.err + told.out
    assert "HYDRA_FULL_ERROR" not in told.err + told.out
    assert told.err or told.out
    assert calls == [[], []]


def test_all_mistakes_of_a_line_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "prompt=x", "format=jsn", "--tp=8", "parallel=ep46", "sampling.n=0", "depth=3"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("deepinfer: 6 problems:")
    assert "type: parallel=ep64" in told and "type: speculation.depth=3" in told


@pytest.mark.parametrize("verb", NOT_BUILT["task.kind"])
def test_verbs_that_are_not_built_are_refused_by_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(verb)]) == 1
    told = capsys.readouterr().err
    assert str(verb) in told and "built are generate, plan, " in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"deepinfer {__version__}\n"


def test_help_names_every_group_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    conf = Path(__file__).parents[2] / "conf"
    for path in conf.glob("*/*.yaml"):
        assert f"  {path.stem} " in told
        lines = path.read_text("utf-8").splitlines()
        assert next(line for line in lines if not line.startswith("# @")).removeprefix("# ") in told
    for word in ("prompt=TEXT", "--cfg", "exit codes", "format="):
        assert word in told


def test_help_of_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-h"]) == 0
    told = capsys.readouterr().out
    assert "usage: deepinfer plan" in told and "explain=KEY" in told and "prompt=" not in told


def test_views_of_hydra(capsys: pytest.CaptureFixture[str]) -> None:
    text = 'It\'s ${x} "q" \\'
    assert main(["--cfg", "job", "--package", "model", f"model.path={text}"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# @package model\n") and "name: auto" in shown
    import yaml

    assert yaml.safe_load(shown)["path"].replace("\\${", "${") == text
    assert main(["--info", "searchpath"]) == 0
    assert "pkg://deepinfer.conf" in capsys.readouterr().out
    assert main(["-sc", "install=bash"]) == 0
    assert "complete" in capsys.readouterr().out


WITHOUT_TORCH = [
    ["--help"],
    ["plan", "--help"],
    ["--version"],
    ["--cfg", "job"],
    ["plan"],
    ["plan", "hardware=ascend950", "parallel=ep64"],
    ["plan", "hardware=ascend950", "parallel=ep64", "format=json"],
    ["doctor"],
]


@pytest.mark.parametrize("argv", WITHOUT_TORCH, ids=" ".join)
def test_never_imports_torch(argv: list[str], tmp_path: Path) -> None:
    """Not even when it is asked for by name: a torch that cannot be imported stands in the way."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from deepinfer.cli.main import main; code = main(sys.argv[1:]);"
        "print('torch' in sys.modules, file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), *argv], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"


def test_a_machine_that_is_not_here(tmp_path: Path) -> None:
    """The plan is printed, one sentence says what it needs and has, and the exit code says that the device is missing."""
    asked = ["hardware=ascend950", "parallel=ep64"]
    command = [sys.executable, "-m", "deepinfer", *asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 4, done.stderr
    assert "v41_flash" in done.stdout
    assert "Traceback" not in done.stderr
    done = subprocess.run([*command[:3], "plan", *asked], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m deepinfer --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_refusing_leaves_nothing_behind(tmp_path: Path) -> None:
    for argv in (["parallel=ep46"], ["--cfg", "job"], ["--info", "defaults"]):
        subprocess.run([sys.executable, "-m", "deepinfer", *argv], capture_output=True, cwd=tmp_path, check=False)
    assert list(tmp_path.iterdir()) == []
