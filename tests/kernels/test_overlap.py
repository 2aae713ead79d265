"""Launches that begin before the one before them ends: they wait before they touch memory, and change no bit."""

import ast
import re
from pathlib import Path

import pytest
import torch
from deepinfer.kernels import cuda_program
from deepinfer.kernels.triton_norm_quantise import norm_quantise
from deepinfer.kernels.triton_overlap import OVERLAP
from deepinfer.kernels.triton_quantise import quantise
from deepinfer.kernels.triton_stream_mean import stream_mean
from torch import Tensor

SOURCES = cuda_program.SOURCES
WAIT = "wait_for_earlier_launches()"
HARMLESS = ("fetch_soon", "cdiv", "program_id", "arange", "minimum", "min", "to")  # what a kernel may call before


def kernels_that_overlap() -> dict[str, ast.FunctionDef]:
    """Triton kernels by file and name that some launch with `**OVERLAP` names."""
    found = {}
    for path in sorted(SOURCES.glob("triton_*.py")):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        launched = {
            call.func.value.id
            for call in calls
            if isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name)
            if any(word.arg is None and ast.unparse(word.value) == "OVERLAP" for word in call.keywords)
        }
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in launched]
        found |= {f"{path.stem} {function.name}": function for function in functions}
    return found


def test_kernels_wait_before_they_touch_memory() -> None:
    kernels = kernels_that_overlap()
    assert len(kernels) > 20
    for name, kernel in kernels.items():
        places = [i for i, line in enumerate(kernel.body) if ast.unparse(line) == WAIT]
        assert len(places) == 1, f"{name} waits once, in every program"
        before = [node for line in kernel.body[: places[0]] for node in ast.walk(line) if isinstance(node, ast.Call)]
        touching = [ast.unparse(call) for call in before if ast.unparse(call.func).split(".")[-1] not in HARMLESS]
        assert not touching, f"{name} touches memory before it waits: {touching}"


def test_programs_in_cuda_that_overlap_wait() -> None:
    """Somewhere in the source or in what it includes."""
    found = 0
    for path in sorted(SOURCES.glob("cuda_*.py")):
        text = path.read_text()
        for source in re.findall(r'CudaProgram\("([\w.]+)"', text) if "overlap=True" in text else ():
            assert "earlier_launches_wait()" in whole(SOURCES / source), f"{source} is launched early and never waits"
            found += 1
    assert found > 8


def whole(source: Path) -> str:
    """A source and all that it includes, but for the header that says what waiting is."""
    text = source.read_text()
    names = [name for name in re.findall(r'#include "([\w.]+)"', text) if name != "tensor_copies.cuh"]
    return text + "".join(whole(SOURCES / name) for name in names)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", (1, 700))
def test_a_chain_has_the_bits_of_one_launch_after_another(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch reads what the one before it wrote, into memory that others have used; eager and as a graph."""
    torch.manual_seed(0)
    x_TND, weight_D = torch.randn(rows, 4, 5120, device="cuda").bfloat16(), torch.randn(5120, device="cuda").bfloat16()

    def chain() -> Tensor:
        streams_TND = x_TND
        for _ in range(12):
            mean_TD = stream_mean(streams_TND, torch.empty_like(streams_TND[:, 0]))
            normed_TD = norm_quantise(mean_TD, weight_D, 1e-6, normed=True, grid=False).normed_TD
            assert normed_TD is not None
            streams_TND = quantise(normed_TD).grid_TD.repeat_interleave(4, 0).view_as(x_TND)
        return streams_TND

    with monkeypatch.context() as apart:
        for name in list(OVERLAP):
            apart.delitem(OVERLAP, name)
        expected = chain()
    found = [chain() for _ in range(5)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain()
    for _ in range(20):
        graph.replay()
        found.append(captured.clone())
    assert expected.isfinite().all() and all(torch.equal(expected, other) for other in found)
