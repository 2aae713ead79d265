"""Placements in files: what was written comes back, and nothing else does."""

from pathlib import Path

import numpy as np
import pytest
from fake_slots import shuffled
from safetensors.numpy import save_file

from deepinfer.parallel.eplb.saved import Saved, read_placement, write_placement

SHAPE = {"layers": 3, "experts": 12, "ranks": 4, "slots": 16}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "placement.safetensors"
    load_WLE = np.random.default_rng(0).integers(0, 1000, (5, 3, 12))
    write_placement(path, Saved(shuffled(1, 3, 12, 4, 4), load_WLE))
    return path


def test_a_placement_comes_back_as_it_was(written: Path) -> None:
    found = read_placement(written, **SHAPE)
    assert np.array_equal(found.placement.expert_LP, shuffled(1, 3, 12, 4, 4).expert_LP)
    assert np.array_equal(found.load_WLE, np.random.default_rng(0).integers(0, 1000, (5, 3, 12)))
    assert [path.name for path in written.parent.iterdir()] == [written.name], "nothing is left beside it"


def test_a_placement_without_loads_comes_back(tmp_path: Path) -> None:
    write_placement(tmp_path / "p", Saved(shuffled(1, 3, 12, 4, 4), np.zeros((0, 3, 12), np.int64)))
    assert read_placement(tmp_path / "p", **SHAPE).load_WLE.shape == (0, 3, 12)


def test_where_nothing_can_be_written_an_oserror_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory"):
        write_placement(tmp_path / "absent" / "p", Saved(shuffled(1, 3, 12, 4, 4), np.zeros((0, 3, 12), np.int64)))


@pytest.mark.parametrize("where", [3, 40, 0.5, 0.9, -1])
def test_a_changed_byte_is_refused(written: Path, where: float) -> None:
    data = bytearray(written.read_bytes())
    at = int(where * len(data)) if 0 < where < 1 else int(where)
    data[at] ^= 1
    written.write_bytes(data)
    with pytest.raises(ValueError, match=r"no placement|is damaged"):
        read_placement(written, **SHAPE)


@pytest.mark.parametrize("data", [b"", b"not a file of tensors", b"\x08" + b"\0" * 7 + b"{}      "])
def test_what_is_no_placement_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p").write_bytes(data)
    with pytest.raises(ValueError, match=r"no placement|is damaged"):
        read_placement(tmp_path / "p", **SHAPE)


def test_a_cut_file_and_a_missing_one_are_refused(written: Path) -> None:
    written.write_bytes(written.read_bytes()[:-8])
    for path in (written, written.with_name("absent")):
        with pytest.raises(ValueError, match="no placement can be read"):
            read_placement(path, **SHAPE)


def test_tensors_of_others_are_refused(tmp_path: Path) -> None:
    save_file({"expert_LP": np.zeros((3, 16), np.int64)}, tmp_path / "p")
    with pytest.raises(ValueError, match=r"no placement that llm\.experts\.save wrote"):
        read_placement(tmp_path / "p", **SHAPE)


@pytest.mark.parametrize("other", [{"layers": 2}, {"experts": 8}, {"ranks": 2}, {"slots": 12}])
def test_a_placement_of_another_layout_is_refused(written: Path, other: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="it is of 3 layers with 12 experts, on 4 ranks in 16 slots; this plan has"):
        read_placement(written, **{**SHAPE, **other})
