"""Rules that a linter does not know: who may read the environment, import kernels, or catch everything."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "deepinfer").rglob("*.py")) + sorted((ROOT / "kernels").rglob("*.py"))
OUTERMOST = {  # the loops that may catch everything, and libraries that raise nothing narrower
    "deepinfer/cli/main.py",
    "deepinfer/serving/engine_thread.py",
    "deepinfer/engine/executor_thread.py",
    "deepinfer/engine/world/rank_main.py",
    "deepinfer/sampling/grammar/lark.py",
    "deepinfer/sampling/grammar/workshop.py",
    "deepinfer/sampling/grammar/session.py",
}
KERNEL_READERS = (
    "kernels/",
    "deepinfer/ops/",
    "deepinfer/sampling/",
    "deepinfer/speculation/",
    "deepinfer/cache/",
)  # the thin layers over device kernels
ENVIRONMENT = {"deepinfer/config/env.py"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_source(path: Path) -> None:
    name = name_of(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else ""
            raises_again = (
                isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            )  # tidies up, hides nothing
            catches_all = caught in ("", "Exception", "BaseException") and not raises_again
            assert not catches_all or name in OUTERMOST, f"{name}:{node.lineno} catches everything"
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.putenv"):
            assert name in ENVIRONMENT, f"{name}:{node.lineno} touches the environment"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec"), f"{name}:{node.lineno} runs text"
        if isinstance(node, ast.keyword):
            assert node.arg != "trust_remote_code", f"{name}: {node.arg}"
        if isinstance(node, ast.Name):
            assert node.id != "NotImplementedError", f"{name}:{node.lineno} is a stub"
    modules = set(imported(path))
    assert not {"pickle", "dill", "cloudpickle", "marshal"} & modules, name
    if any(module.startswith("deepinfer.kernels") for module in modules):
        assert name.startswith(KERNEL_READERS), f"{name} imports kernels directly"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_to_do(path: Path) -> None:
    marks = re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", path.read_text("utf-8"))
    assert marks == []


def test_file_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [name_of(path) for path in SOURCES if path.stem in vague] == []


def test_no_variable_of_ours() -> None:
    ours = [name_of(path) for path in SOURCES if re.search(r"[\"']DEEPINFER_[A-Z]", path.read_text("utf-8"))]
    assert ours == []
