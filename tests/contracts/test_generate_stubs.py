"""The reader of signatures, on a made-up package: Python functions and classes, pybind11 functions with and without names."""

from pathlib import Path

import generate_stubs
import pytest
import schemas

INIT = (
    "from ._C import (\n    gemm,\n    set_flag,\n    count,\n    elsewhere,\n)\nfrom .inner import (\n    shown,\n)\n"
)
INNER = """
def shown(a: int, *rest, b: str = 'x', c=None, **more) -> None: ...
def _hidden(): ...
class Buffer:
    def __init__(self, group, size: int = 3): ...
    @staticmethod
    def hint(n): ...
    def run(self, x, flag: bool = False): ...
    def _step(self): ...
"""
CPP = """
// static void gemm(const int& wrong) {
static void gemm(const std::pair<torch::Tensor, torch::Tensor>& a, /* a comment, */ const torch::Tensor& d,
                 const std::optional<std::tuple<int, int>>& recipe, const bool& fast) { }
m.def("gemm", &gemm,
      py::arg("a"), py::arg("d"),
      py::arg("recipe") = std::make_tuple(1, 32), py::arg("fast") = false);
m.attr("same") = m.attr("gemm");
m.def("set_flag", [&](const bool enabled) { });
m.def("count", []() { });
m.def("elsewhere", &elsewhere);
m.def("private", &gemm, py::arg("a"));
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(generate_stubs.PACKAGES, "made-up", ("made", ("inner",)))
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: made_up\nVersion: 1.2\n")
    for folder in ("made", "csrc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "made" / "__init__.py").write_text(INIT.replace("gemm,", "gemm, same,"))
    (tmp_path / "made" / "inner.py").write_text(INNER)
    (tmp_path / "csrc" / "api.hpp").write_text(CPP)
    return tmp_path


def test_signatures_are_read_without_importing(package: Path) -> None:
    found = generate_stubs.contract(package)
    assert (found["distribution"], found["version"], found["import"]) == ("made-up", "1.2", "made")
    functions = found["functions"]
    compiled, python = (
        {"count", "elsewhere", "gemm", "same", "set_flag"},
        {"Buffer.__init__", "Buffer.hint", "Buffer.run", "shown"},
    )
    assert functions.keys() == {f"made.{name}" for name in compiled} | {f"made.inner.{name}" for name in python}
    assert list(functions) == sorted(functions)
    assert (
        functions["made.gemm"]
        == functions["made.same"]
        == [
            {"name": "a", "annotation": "const std::pair<torch::Tensor, torch::Tensor>&"},
            {"name": "d", "annotation": "const torch::Tensor&"},
            {"name": "recipe", "annotation": "const std::optional<std::tuple<int, int>>&", "default": "(1, 32)"},
            {"name": "fast", "annotation": "const bool&", "default": "False"},
        ]
    )
    assert functions["made.set_flag"] == [{"name": "enabled", "annotation": "const bool"}]
    assert functions["made.count"] == [] and functions["made.elsewhere"] == [{"name": "*args"}]
    assert [argument["name"] for argument in functions["made.inner.shown"]] == ["a", "*rest", "b", "c", "**more"]
    assert functions["made.inner.Buffer.__init__"] == [
        {"name": "group"},
        {"name": "size", "annotation": "int", "default": "3"},
    ]
    assert functions["made.inner.Buffer.hint"] == [{"name": "n"}]


def test_schemas_of_a_compiled_library_are_read_from_its_text(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    text = (
        b"\0\x7fnpu_add_(Tensor(a!) y) -> ()\0npu_add(Tensor x, int[2]? sizes=[1, 2], *, bool fast=false) -> Tensor\0"
    )
    library.write_bytes(text)
    assert schemas.registered(library, ("npu_add",))["npu_add"] == [
        {"name": "x", "annotation": "Tensor"},
        {"name": "sizes", "annotation": "int[2]?", "default": "[1, 2]"},
        {"name": "fast", "annotation": "bool", "default": "False", "keyword": "only"},
    ]
    with pytest.raises(ValueError, match=r"lib.so registers no operator npu_mul"):
        schemas.registered(library, ("npu_mul",))
