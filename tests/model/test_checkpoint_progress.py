"""The progress line: written on a terminal, silent elsewhere."""

import pytest

from deepinfer.model.checkpoint.progress import showing_bytes


def test_nothing_is_written_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_bytes("fetching") as report:
        report(1, 0)
        report(2**20, 2**21)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_label_and_amounts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    with showing_bytes("fetching") as report:
        report(2**20, 2**21)
    written = capsys.readouterr()
    assert written.out == "" and "fetching" in written.err and "1.0/2.0" in written.err
