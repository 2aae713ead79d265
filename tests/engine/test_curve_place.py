"""Where a measured curve goes, and under which key: not every user has a home, and pods change their names."""

from pathlib import Path

import pytest

from deepinfer.config.machine import Host
from deepinfer.config.processor import machine_type
from deepinfer.engine import build_speculation


def test_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert build_speculation.curve_folder() == tmp_path / "x" / "deepinfer"
    for ignored in ("", "caches", "./caches"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert build_speculation.curve_folder() == tmp_path / ".cache" / "deepinfer"


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_no_home_is_told_and_the_engine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepinfer.api import LLM, SamplingParams

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(build_speculation, "MOST_S", 0.0)
    assert build_speculation.curve_folder() is None
    overrides = ("model=v41_tiny", "hardware=cpu", "speculation=dspark", "scheduler.max_num_seqs=1")
    with LLM(*overrides, "model.max_model_len=256") as llm:
        (notice,) = (text for text in llm.take_notices() if "cost curve" in text)
        assert "cannot be stored" in notice and "XDG_CACHE_HOME" in notice and "every start" in notice
        assert len(llm.generate([[0, 5, 7]], SamplingParams(max_tokens=4, ignore_eos=True))[0].token_ids) == 4


class Pod(Host):
    """A machine whose processor is another one."""

    def __init__(self, cpuinfo: str | None, cores: int = 8) -> None:
        super().__init__()
        self.cpuinfo, self.cores, self.architecture = cpuinfo, cores, "x86_64"

    def read(self, path: str) -> str | None:
        return self.cpuinfo


def test_the_kind_of_machine_and_not_its_name() -> None:
    epyc = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654\ncpu MHz\t\t: 2400\n"
    kinds = [machine_type(Pod(epyc + clock)) for clock in ("", "\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n")]
    assert kinds == ["x86_64, AMD EPYC 9654, 17, 8 cores"] * 2
    others = {
        machine_type(Pod(epyc, cores=4)),
        machine_type(Pod(epyc.replace("9654", "7763"))),
        machine_type(Pod(None)),
    }
    assert len(others - set(kinds)) == 3
