"""The door to CUDA C++: includes written out, sources complete, compilation errors shown, launches right."""

import re
from pathlib import Path

import pytest
import torch
from deepinfer.kernels import cubin_cache, cuda_program
from deepinfer.kernels.cuda_program import CudaProgram

KERNELS = Path(cuda_program.__file__).parent
ADD = """#include "hopper.cuh"
#include "hopper.cuh"
extern "C" __global__ void add(float* out, const float* x, int n, float c) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + c * OFFSET + cluster_rank();
}
"""


def test_headers_are_written_out_once_each() -> None:
    text = cuda_program._with_includes(KERNELS / "hopper_wgmma.cuh")
    assert not re.search(r"^\s*#include", text, re.MULTILINE)
    assert text.count("DEVICE void barrier_wait(") == 1


def test_the_written_header_is_the_generators() -> None:
    from deepinfer.kernels import generate_wgmma

    assert (KERNELS / "hopper_wgmma.cuh").read_text() == generate_wgmma.text()


@pytest.mark.parametrize("source", sorted(KERNELS.glob("*.cu*")), ids=lambda path: path.name)
def test_a_source_includes_nothing_from_outside(source: Path) -> None:
    for name in re.findall(r"^\s*#include\s+(\S+)", source.read_text(), re.MULTILINE):
        assert name.startswith('"') and (KERNELS / name.strip('"')).is_file(), f"{source.name} includes {name}"


def test_an_argument_is_an_address_or_thirty_two_bits() -> None:
    assert cuda_program._argument(None)[0] == 0
    assert cuda_program._argument(True)[0] == 1
    assert cuda_program._argument(7)[1] is not cuda_program._argument(7.0)[1]


@pytest.mark.parametrize(
    ("xdg", "base"), [("/a/cache", "/a/cache"), ("cache", "/home/me/.cache"), ("", "/home/me/.cache")]
)
def test_cubins_are_kept_in_the_users_cache(xdg: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert cubin_cache.cubin_folder() == Path(base, "deepinfer", "cubins")


def test_a_tensor_of_the_host_is_refused() -> None:
    with pytest.raises(AssertionError, match="this one is on cpu"):
        cuda_program._argument(torch.zeros(2))


@pytest.mark.gpu
def test_a_kernel_runs_in_clusters_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "add.cu").write_text(ADD)
    add = CudaProgram(str(tmp_path / "add.cu"), {"OFFSET": 2}).kernel("add", threads=128, cluster=(2, 1, 1))
    x = torch.randn(1000, device="cuda")
    out = torch.full_like(x, torch.nan)
    add((8,), out, x, 1000, 3.0)
    rank = torch.arange(1000, device="cuda") // 128 % 2
    torch.testing.assert_close(out, x + 6.0 + rank)
    assert len(list((tmp_path / "deepinfer" / "cubins").glob("*.cubin"))) == 1


@pytest.mark.gpu
def test_what_does_not_compile_shows_the_compilers_words(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text("int x = ;")
    with pytest.raises(ValueError, match=r"(?s)wrong\.cu does not compile.*expected an expression"):
        CudaProgram(str(tmp_path / "wrong.cu")).kernel("x", threads=32)
