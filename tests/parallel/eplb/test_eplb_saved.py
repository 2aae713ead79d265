"""Placements in files: what was written comes back, and nothing else does."""

import os
from pathlib import Path

import numpy as np
import pytest
from fake_slots import shuffled
from safetensors.numpy import save_file

from deepinfer.parallel.eplb.saved import FORMAT, Saved, _digest, read_placement, write_placement

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


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "p.part")
    for name in ("folder", "pipe", "p"):
        with pytest.raises(OSError, match="no regular file"):
            write_placement(tmp_path / name, Saved(shuffled(1, 3, 12, 4, 4), np.zeros((0, 3, 12), np.int64)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "p.part", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_nothing_is_left_of_what_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_placement(tmp_path / "p", Saved(shuffled(1, 3, 12, 4, 4), np.zeros((0, 3, 12), np.int64)))
    assert not list(tmp_path.iterdir())


def changed(array: np.ndarray, value: int) -> np.ndarray:
    array = array.copy()
    array.flat[0] = value
    return array


GOOD_LP, GOOD_WLE = np.tile(np.arange(16) % 12, (3, 1)), np.ones((5, 3, 12), np.int64)


@pytest.mark.parametrize(
    ("about", "expert_LP", "load_WLE", "why"),
    [
        ({"experts": ""}, GOOD_LP, GOOD_WLE, "does not say of how many experts"),
        ({"ranks": "-4"}, GOOD_LP, GOOD_WLE, "does not say of how many experts"),
        ({}, GOOD_LP[0], GOOD_WLE, r"expert_LP is int64 of shape \[16\], not int64 of layers and slots"),
        ({}, GOOD_LP.astype(np.float32), GOOD_WLE, "expert_LP is float32"),
        ({}, changed(GOOD_LP, 12), GOOD_WLE, "a slot holds expert 12, and experts count from 0 to 11"),
        ({}, changed(GOOD_LP, -1), GOOD_WLE, "a slot holds expert -1"),
        ({}, GOOD_LP.clip(0, 4), GOOD_WLE, "no slot of layer 0 holds expert 5"),
        ({}, GOOD_LP, GOOD_WLE[:, :2], "load_WLE is .*, not int64 of steps, 3 layers and 12 experts"),
        ({}, GOOD_LP, GOOD_WLE[0], "load_WLE is "),
        ({}, GOOD_LP, np.full((5, 3, 12), np.nan), "load_WLE is float64"),
        ({}, GOOD_LP, changed(GOOD_WLE, -7), "a load is -7 rows"),
    ],
)
def test_wrong_content_with_a_digest_of_its_own_is_refused(
    tmp_path: Path, about: dict[str, str], expert_LP: np.ndarray, load_WLE: np.ndarray, why: str
) -> None:
    tensors = {"expert_LP": np.ascontiguousarray(expert_LP), "load_WLE": np.ascontiguousarray(load_WLE)}
    written = {"format": FORMAT, "experts": "12", "ranks": "4", "digest": _digest(tensors), **about}
    save_file(tensors, tmp_path / "p", written)
    with pytest.raises(ValueError, match=why):
        read_placement(tmp_path / "p", **SHAPE)
