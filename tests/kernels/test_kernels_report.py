"""Tables of kernel lines: the latest counts, targets are judged, pages are current or said not to be."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import kernel_lines
import kernels_report
import pytest
import torch
import yaml

MARKED = f"# Page\n\n{kernels_report.BEGIN}\n{kernels_report.END}\n\nafter\n"


def line(op: str = "fp8_linear", case: str = "out N=5120 K=8192 T=4096", **values: Any) -> dict[str, Any]:
    return {
        "op": op,
        "case": case,
        "variant": "invariant",
        "target": "≥ 600 TF",
        "median_us": 540.0,
        "p10_us": 535.0,
        "p90_us": 550.25,
        "tflops": 636.3,
        "gbytes_per_s": 300.0,
        "floor_us": 435.0,
        "bound": "compute",
        "share": 0.8,
        "ratios": {"cublas_bf16": 0.9},
        "absent": {"deep_gemm_fp8": "deep_gemm is not installed"},
        "device": "NVIDIA H200",
        "cuda": "13.0",
        "commit": "abc1234",
        "versions": {"torch": "2.11.0", "triton": "3.6.0"},
    } | values


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pages with markers and a results file of two ops, one of them measured twice."""
    for name in ("performance", "readme"):
        (tmp_path / f"{name}.md").write_text(MARKED)
    monkeypatch.setattr(kernels_report, "PAGES", {name: tmp_path / f"{name}.md" for name in ("performance", "readme")})
    monkeypatch.setattr(kernels_report, "RESULTS", tmp_path)
    lines = [
        line(median_us=999.0, tflops=100.0),
        line(),
        line(variant="fast", median_us=500.0, tflops=700.0, target=""),
        line(
            "top_k", "512 of 16384, T=1", target="≤ 10 µs", median_us=12.0, bound="memory", ratios={"torch_topk": 3.0}
        ),
    ]
    (tmp_path / "kernels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels_report.py", *words])
    kernels_report.main()


@pytest.mark.parametrize(
    ("target", "values", "expected"),
    [
        ("≥ 600 TF", {}, True),
        ("≥ 3.0 TB/s", {"gbytes_per_s": 2999.0}, False),
        ("≥ 75 % of copy bandwidth on touched experts", {"share": 0.76}, True),
        ("≤ 10 µs", {"median_us": 10.5}, False),
        ("within 3 × the byte floor", {"median_us": 1300.0}, True),
        ("within 1.5× of the floor", {"median_us": 700.0}, False),
        ("≤ 2.2 passes", {"median_us": 900.0}, True),
        ("<= 68 us", {"median_us": 70.0}, False),
        (">= 1.5x", {"median_us": 700.0}, True),
        ("≤ 1.5 × floor", {"floor_us": 10.0, "host_floor_us": 400.0}, True),
        ("", {}, None),
    ],
)
def test_targets_are_judged(target: str, values: dict[str, float], expected: bool | None) -> None:
    assert kernel_lines.reached(line(target=target, **values)) is expected


def test_an_unreadable_target_is_refused() -> None:
    with pytest.raises(ValueError, match="target 'fast' of fp8_linear: write ≥, ≤ or within"):
        kernel_lines.reached(line(target="fast"))


def test_pages_are_written_once_and_then_current(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"out of date: performance\.md, readme\.md; type"):
        run(monkeypatch, "--check")
    assert (pages / "readme.md").read_text() == MARKED
    run(monkeypatch, "--write")
    first = {page: page.read_text() for page in pages.glob("*.md")}
    run(monkeypatch, "--check")
    run(monkeypatch, "--write")
    assert {page: page.read_text() for page in pages.glob("*.md")} == first
    assert all(text.startswith("# Page\n") and text.endswith("\n\nafter\n") for text in first.values())


def test_tables_say_what_the_latest_lines_say(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "--write")
    full, short = (pages / "performance.md").read_text(), (pages / "readme.md").read_text()
    row = (
        "| out N=5120 K=8192 T=4096 | invariant | 540 (535 – 550) | 636 TF | 435 (compute) | 80% | ≥ 600 TF: reached |"
    )
    assert row in full and "999" not in full
    assert "Invariant over fast, 1 cases with both: +8.0% on average" in full
    assert re.search(r"4,096 × 5,120 × 8,192 \| 1,279 TF \| out N=5120 K=8192 T=4096 \| 636 TF \| 0.50", full)
    assert "- deep_gemm_fp8: deep_gemm is not installed" in full
    assert "| top_k | 512 of 16384, T=1: 12 µs (≤ 10 µs) | 0 of 1 | torch_topk 3.00 |" in short


@pytest.mark.parametrize("name", ["performance", "readme"])
def test_where_a_page_lacks_markers_none_is_written(name: str, pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pages / f"{name}.md").write_text("nothing")
    with pytest.raises(SystemExit, match=rf"{name}\.md lacks the lines"):
        run(monkeypatch, "--write")
    assert {page.read_text() for page in pages.glob("*.md")} == {"nothing", MARKED}


def test_both_pages_have_their_markers() -> None:
    for page in kernels_report.PAGES.values():
        assert page.read_text("utf-8").count(kernels_report.BEGIN) == 1, page
        assert page.read_text("utf-8").count(kernels_report.END) == 1, page


def test_without_lines_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_report, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match=r"python benchmarks/kernels\.py --record"):
        run(monkeypatch)


def test_published_figures_can_be_compared() -> None:
    published = yaml.safe_load(kernels_report.PUBLISHED.read_text())
    assert published["source"] and published["date"]
    for point in published["points"]:
        assert (
            re.compile(point["case"])
            and re.compile(point["op"])
            and point["figure"] in kernels_report.UNITS
            and point["value"] > 0
        ), point["name"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    with pytest.raises(SystemExit, match=r"no CUDA device here: .* type: python -m deepinfer doctor"):
        timing_command().main()


@pytest.mark.parametrize(
    ("status", "said"), [(5, "no GPU test with nobody or router in its name"), (0, "nothing was"), (1, "1")]
)
def test_where_nothing_was_timed_it_says_so(status: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = timing_command()
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--only", "nobody", "router"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "run", lambda only, file: status)
    with pytest.raises(SystemExit, match=said):
        command.main()


def test_the_printed_table_has_a_row_a_line() -> None:
    shown = timing_command().table([line(), line("top_k", "512 of 16384", target="")])
    assert shown.row_count == 2
    assert list(shown.columns[6].cells) == ["≥ 600 TF: reached", ""]
    assert kernel_lines.notices([line(), line()]) == ["deep_gemm_fp8: deep_gemm is not installed"]


def timing_command() -> ModuleType:
    """benchmarks/kernels.py: the repository's folder `kernels` has the same name."""
    spec = importlib.util.spec_from_file_location(
        "timing_command", Path(kernels_report.__file__).with_name("kernels.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
