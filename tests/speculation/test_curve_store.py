"""Curves on disk: found again under their key, and never at the price of somebody's file."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.curve_store import MARK, CurveStore

KEY = {"plan": "abc", "device": "H200", "torch": "2.11", "sizes": [1, 2, 4]}


def a_curve(factor: float = 1.0) -> CostCurve:
    return CostCurve(
        np.array([1, 2, 4]), factor * np.array([1, 1.5, 1.75]), np.array([1, 3]), np.ones(2), np.zeros(2), padded=True
    )


def never() -> CostCurve:
    raise AssertionError("measured again")


def same(one: CostCurve, other: CostCurve) -> bool:
    return all(
        np.array_equal(one.predict(np.arange(1, 9), count), other.predict(np.arange(1, 9), count)) for count in (1, 2)
    )


def test_a_curve_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "curves"
    first, notice = CurveStore(folder, KEY).curve(a_curve)
    assert not notice
    again, notice = CurveStore(folder, dict(reversed(KEY.items()))).curve(never)
    assert same(first, again) and again.padded and not notice
    assert len(list(folder.iterdir())) == 1, "no temporary file stays"


def test_corrections_of_a_run_are_not_stored(tmp_path: Path) -> None:
    store, curve = CurveStore(tmp_path, KEY), a_curve()
    for _ in range(50):
        curve.observe(2, 1, 9.0, drafted=True)
    store.save(curve)
    found, _ = store.load()
    assert found is not None and same(found, a_curve())


@pytest.mark.parametrize("name", KEY)
def test_another_key_is_another_curve(tmp_path: Path, name: str) -> None:
    CurveStore(tmp_path, KEY).save(a_curve())
    other = CurveStore(tmp_path, {**KEY, name: "other"})
    found, notice = other.curve(lambda: a_curve(2))
    assert same(found, a_curve(2)) and not notice and len(list(tmp_path.iterdir())) == 2


def test_an_old_curve_is_measured_again(tmp_path: Path) -> None:
    now = [1000.0]
    store = CurveStore(tmp_path, KEY, max_age_s=60, now_s=lambda: now[0])
    store.curve(a_curve)
    now[0] = 1059.0
    assert same(store.curve(never)[0], a_curve())
    now[0] = 1061.0
    found, notice = store.curve(lambda: a_curve(3))
    assert same(found, a_curve(3)) and not notice
    assert same(store.curve(never)[0], a_curve(3))
    now[0] = 10.0
    assert store.load() == (None, ""), "of the future: the clock was set back"


def damages(text: bytes) -> dict[str, bytes]:
    data = json.loads(text)

    def again(**tables: object) -> bytes:
        return json.dumps({**data, **tables}).replace(" 1, ", " 1,", 1).encode()

    return {
        "cut": text[: len(text) // 2],
        "shorter table": json.dumps({**data, "forward_s": [1.0]}).replace(" 1, ", " 1,", 1).encode(),
        "NaN": json.dumps({**data, "forward_s": [1.0, float("nan"), 2.0]}).replace(" 1, ", " 1,", 1).encode(),
        "no times": text.replace(b"plain_s", b"plane_s"),
        "words": json.dumps({**data, "rows": ["a", "b", "c"]}).replace(" 1, ", " 1,", 1).encode(),
        "falling": json.dumps({**data, "rows": [4, 2, 1]}).replace(" 1, ", " 1,", 1).encode(),
        "copied from another key": json.dumps({**data, "key": {"plan": "x"}}).replace(" 1, ", " 1,", 1).encode(),
        "empty": b"",
        "a number beyond floats": again(rows=[1, 10**400, 10**401]),
        "halves of rows": again(rows=[1.5, 2.5, 4.5]),
        "true as a size": again(sequences=[True, 3]),
        "a word for padded": again(padded="no"),
        "a time for padded": again(measured_at_s=True),
        "no time at all": again(forward_s=[1e-320, 1.0, 2.0]),
        "a time of ages": again(forward_s=[1.0, 2.0, 1e300]),
        "times without a sum": again(drafting_s=[1e308, 1e308]),
        "a text for a time": again(plain_s=["1", "1"]),
        "deep": text[: text.index(b",") + 1] + b'"key": ' + b"[" * 100_000,
    }


@pytest.mark.parametrize("name", damages(b'{"deepinfer_cost_curve": 1,"plain_s": 0}'))
def test_a_damaged_file_is_measured_anew_replaced_and_told(tmp_path: Path, name: str) -> None:
    store = CurveStore(tmp_path, KEY)
    store.save(a_curve())
    store.path.write_bytes(damages(store.path.read_bytes())[name])
    found, notice = store.curve(lambda: a_curve(2))
    assert same(found, a_curve(2)) and "damaged" in notice and notice.count(str(store.path)) == 1
    assert store.curve(never)[1] == "", "said once"


@pytest.mark.parametrize("content", [b" ", b"my notes", b'{"deepinfer": 1}', b"\xff\xfe"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    store = CurveStore(tmp_path, KEY)
    store.path.write_bytes(content)
    other = tmp_path / "cost_curve_mine.json"
    other.write_text("mine")
    found, notice = store.curve(a_curve)
    assert same(found, a_curve()) and "left alone" in notice and notice.count(str(store.path)) == 1
    assert store.path.read_bytes() == content and other.read_text() == "mine" and len(list(tmp_path.iterdir())) == 2


def test_a_link_or_a_folder_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    store = CurveStore(tmp_path, KEY)
    store.path.symlink_to(target)
    assert "left alone" in store.curve(a_curve)[1] and store.path.is_symlink() and not target.exists()
    store.path.unlink()
    store.path.mkdir()
    assert "left alone" in store.curve(a_curve)[1] and store.path.is_dir()


def test_a_pipe_is_left_alone_and_not_waited_for(tmp_path: Path) -> None:
    store = CurveStore(tmp_path, KEY)
    os.mkfifo(store.path)
    found, notice = store.curve(a_curve)
    assert same(found, a_curve()) and notice.count("left alone") == 1 and store.path.is_fifo()


def test_a_damaged_file_that_cannot_be_replaced_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CurveStore(tmp_path, KEY)
    store.path.write_bytes(MARK + b"}")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    _, notice = store.curve(a_curve)
    assert "No space left" in notice and "every start" in notice and ";" in notice and "replaced" not in notice


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found, notice = CurveStore(tmp_path / "file" / "curves", KEY).curve(a_curve)
    assert same(found, a_curve()) and notice.count("every start") == 1


def test_a_reader_sees_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CurveStore(tmp_path, KEY)
    store.save(a_curve())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in store.save(a_curve(2))
    assert same(store.curve(never)[0], a_curve()) and len(list(tmp_path.iterdir())) == 1
