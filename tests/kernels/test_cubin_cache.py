"""Compiled kernels in a cache folder that others write, damage, forbid or have none of: always whole, at worst made anew."""

import subprocess
import sys
from pathlib import Path

import pytest
from deepinfer.kernels import cubin_cache, cuda_program

CUBIN = b"\x7fELF" + bytes(range(256)) * 40


class Compiler:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> bytes:
        self.calls += 1
        return CUBIN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "deepinfer" / "cubins"


def test_a_kernel_is_compiled_once(folder: Path) -> None:
    compiler = Compiler()
    assert [cubin_cache.kept_or_made("a", compiler) for _ in range(3)] == [CUBIN] * 3
    assert compiler.calls == 1 and [path.name for path in folder.iterdir()] == ["a.cubin"]


@pytest.mark.parametrize("damage", [
    lambda raw: b"", lambda raw: raw[:10], lambda raw: raw[:-1], lambda raw: raw + b"x", lambda raw: raw[:-32],
    lambda raw: raw[:99] + bytes([raw[99] ^ 1]) + raw[100:], lambda raw: bytes(len(raw)),
])  # fmt: skip
def test_a_damaged_cubin_is_compiled_again_and_replaced(damage: object, folder: Path) -> None:
    cubin_cache.kept_or_made("a", Compiler())
    path = folder / "a.cubin"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    again = Compiler()
    assert cubin_cache.kept_or_made("a", again) == CUBIN == cubin_cache.kept_or_made("a", again) and again.calls == 1


def test_a_cubin_that_cannot_be_read_is_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin_cache.kept_or_made("a", Compiler())

    def forbidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert cubin_cache.kept_or_made("a", Compiler()) == CUBIN


@pytest.mark.parametrize("place", ["file", "file/below", "a\udcff", "x" * 300])
def test_a_cache_that_can_be_no_folder_costs_a_compilation(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/{place}")
    compiler = Compiler()
    assert cubin_cache.kept_or_made("a", compiler) == CUBIN


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cubin_cache.os, "replace", full)
    assert cubin_cache.kept_or_made("a", Compiler()) == CUBIN and not list(folder.iterdir())


def test_who_has_no_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cubin_cache.cubin_folder() is None
    assert cubin_cache.kept_or_made("a", Compiler()) == CUBIN


def test_two_processes_at_once_both_have_a_whole_cubin(folder: Path) -> None:
    code = (
        "from deepinfer.kernels import cubin_cache as c\n"
        "for i in range(60):\n"
        "    name = str(i % 3)\n"
        "    assert c.kept_or_made(name, lambda: name.encode() * 300_000) == name.encode() * 300_000\n"
        "    if i % 7 == 0: (c.cubin_folder() / f'{name}.cubin').unlink(missing_ok=True)\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(one.wait(60), one.stderr.read() if one.stderr else "") for one in both] == [(0, "")] * 2


def test_without_the_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(
        ImportError, match=r"compiled and launched through cuda-bindings, .*: pip install cuda-bindings;"
    ):
        cuda_program.CudaProgram("cuda_router.cu").cubin("sm_90a")


def test_a_number_that_a_kernel_cannot_take_is_refused() -> None:
    assert [cuda_program._argument(value)[0] for value in (-(1 << 31), (1 << 32) - 1)] == [-(1 << 31), (1 << 32) - 1]
    with pytest.raises(AssertionError, match="was given the whole number 4294967296; it takes 32 bits"):
        cuda_program._argument(1 << 32)
