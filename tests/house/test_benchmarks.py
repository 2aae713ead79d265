"""Benchmarks print; they touch tracked files only when told to, and say what is missing in one line."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize("flags", [[], ["--record"]])
def test_results_are_written_only_on_request(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import record

    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(sys, "argv", ["some.py", *flags])
    record.options("About.").parse_args()
    record.record("figure", wait_ms=3)
    printed = json.loads(capsys.readouterr().out)
    assert printed["wait_ms"] == 3 and printed["versions"]["deepinfer"]
    written = sorted(tmp_path.rglob("*.jsonl"))
    assert [file.name for file in written] == (["figure.jsonl"] if flags else [])
    assert all(json.loads(file.read_text()) == printed for file in written)


COMMANDS = sorted(file.stem for file in BENCHMARKS.glob("*.py") if '"__main__"' in file.read_text("utf-8"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_the_docstring_as_written(name: str) -> None:
    import record

    source = (BENCHMARKS / f"{name}.py").read_text()
    doc = source.split('"""')[1]
    assert f"\n\n    python benchmarks/{name}.py" in doc
    assert "options(__doc__)" in source and doc.strip() in record.options(doc).format_help()


def test_a_missing_peer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import throughput
    import transformers_v4

    monkeypatch.setattr(transformers_v4, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["throughput.py"])
    with pytest.raises(SystemExit, match=r"^no transformers; type: pip install -e '\.\[bench\]', or --no-peer$"):
        throughput.main()


def test_without_vllm_the_scheduler_is_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import scheduler_speed

    words = ["--batches", "3", "--rounds", "1", "--steps", "2", "--peer", str(tmp_path / "python")]
    monkeypatch.setattr(sys, "argv", ["scheduler_speed.py", *words])
    scheduler_speed.main()
    printed = capsys.readouterr()
    assert printed.err == f"no vLLM at {tmp_path / 'python'}: ours alone; type: bash benchmarks/vllm_environment.sh\n"
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert len(lines) == len(scheduler_speed.CASES)
    assert all(line["deepinfer_us"] > 0 and "speedup" not in line for line in lines)
    assert {line["drafts"] for line in lines} == {0, 5} and {line["asynchronous"] for line in lines} == {False, True}
