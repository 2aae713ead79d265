"""Tables of kernel lines: the latest counts, targets are judged, pages are current or said not to be."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import device_timer
import kernel_lines
import kernel_names
import kernel_tables
import kernels_report
import pytest
import torch
import yaml
from kernel_line_cases import line

NOTHING_PUBLISHED = {"source": "", "date": "", "points": []}
MARKED = f"# Page\n\n{kernels_report.BEGIN}\n{kernels_report.END}\n\nafter\n"


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
            "top_k",
            "512 of 16384, T=1",
            target="≤ 10 µs",
            median_us=12.0,
            bound="memory",
            variant="",
            peers_us={"torch_topk": 36.0},
            ratios={"torch_topk": 3.0},
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
        ("≥ 3.0 TB/s", {"gbytes_per_s": 3100.0, "median_us": 10.0, "weight_bytes": 29_000_000}, False),
        ("≥ 75 % of copy bandwidth", {"share": 0.76, "median_us": 10.0, "weight_bytes": 31_000_000}, False),
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
        "| out N=5120 K=8192 T=4096 | invariant | 540 (535 – 550) | 636 TF | 435 (compute) | 80 % | ≥ 600 TF: reached (636 TF) "
        "| cublas_bf16 486 (0.90) |"
    )
    assert row in full and "999" not in full
    assert (
        "**fp8_linear**: dense products, FP8 weights in 32 × 32 blocks, exact. Case: N outputs, K inputs, T rows"
        in full
    )
    assert "`python benchmarks/kernels.py --only test_fp8_linear`" in full
    assert "on NVIDIA H200, CUDA 13.0; lmdeploy 0.18.0, torch 2.11.0, triton 3.6.0; commit abc1234 (3 cases)" in full
    assert re.search(r"4,096 × 5,120 × 8,192 \| 1,279 TF \| out N=5120 K=8192 T=4096 \| 636 TF \| 0.50 \| 0.50", full)
    assert "- deep_gemm_fp8: deep_gemm is not installed" in full
    assert "1 of 2 cases that have a target reach it" in short
    assert (
        "exact (`fp8_linear`) | ≥ 600 TF (out N=5120 K=8192 T=4096) | 1 of 1 | 636 TF | cuBLAS, bf16 weights 0.90 |"
        in short
    )
    assert "| `top_k` | ≤ 10 µs (512 of 16384, T=1) | 0 of 1 | 12 µs | torch_topk 3.00 |" in short


def test_the_short_table_names_an_op_once_and_its_two_fastest_peers() -> None:
    """Names of one meaning are one peer, and a copy of as many bytes comes after real ones."""
    ratios = {"one copy of as many bytes": 0.5, "deep_gemm_masked": 2.0, "deep_gemm_contiguous": 3.0, "other": 9.0}
    lines = [
        line("router", "64 rows, 1x2", target="≤ 10 us", median_us=9.0, ratios=ratios),
        line("router", "64 rows, 3 x 4", target="<= 10 µs", median_us=11.0, ratios={}),
        line(
            "router",
            "1 rows",
            target="≥ 80 % of copy bandwidth at ≥ 8 K tokens",
            ratios={"one copy of as many bytes": 0.5},
        ),
    ]
    row = kernel_tables.short_report(lines).splitlines()[-1]
    assert row == (
        "| router: scores, choice, weights (`router`) "
        "| ≤ 10 µs (64 rows: 1 × 2 … 3 × 4)<br>≥ 80 % of copy bandwidth at ≥ 8 K tokens | 1 of 2<br>1 of 1 "
        "| 9 – 11 µs<br>80.0 % | DeepGEMM, experts in FP8 (lossy) 2.00 – 3.00; other 9.00<br>one copy of as many bytes 0.50 |"
    )


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("within 1.5x of the floor", "≤ 1.5 × the floor"),
        ("≤ 3 × floor", "≤ 3 × the floor"),
        ("within 3 × the byte floor", "≤ 3 × the byte floor"),
        (">= 70 % of copy bandwidth", "≥ 70 % of copy bandwidth"),
        ("≤ 15 us at 4,096 tokens", "≤ 15 µs at 4,096 tokens"),
    ],
)
def test_targets_have_one_spelling(target: str, shown: str) -> None:
    assert kernel_lines.aim(line(target=target)) == shown


def test_small_rates_and_floors_are_not_zero() -> None:
    assert kernel_lines.rate(line(bound="memory", gbytes_per_s=4.2)) == "4.2 GB/s"
    full = kernel_tables.full_report(
        [line(bound="memory", gbytes_per_s=4.2, floor_us=0.0, share=0.0)], NOTHING_PUBLISHED
    )
    assert "| 4.2 GB/s | < 0.001 (memory) | < 1 % |" in full


def test_invariance_is_averaged_over_cases_and_over_all_ops(pages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """540 against 500 µs, and an op of one form, which counts 0."""
    run(monkeypatch, "--write")
    full = (pages / "performance.md").read_text()
    assert "| fp8_linear | out N=5120 K=8192 T=4096 | 540 | 500 | +8.0 % |" in full
    assert "+8.0 % on average over the 1 cases with both forms (target ≤ 8 %: " in full
    assert "worst +8.0 %), +4.0 % over all 2 cases, +4.0 % over the 2 ops" in full
    assert "cases of these ops without another form, and top_k." in full


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


@pytest.mark.skipif(not (kernels_report.RESULTS / "kernels.jsonl").is_file(), reason="no recorded times of kernels")
def test_every_recorded_op_is_explained() -> None:
    recorded = {one["op"] for one in kernel_lines.read(kernels_report.RESULTS / "kernels.jsonl")}
    assert recorded - set(kernel_names.OPERATIONS) == set()


@pytest.mark.skipif(not (kernels_report.RESULTS / "kernels.jsonl").is_file(), reason="no recorded times of kernels")
def test_pages_say_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "--check")


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
            and point["figure"] in kernel_tables.UNITS
            and point["value"] > 0
        ), point["name"]


def test_a_line_names_the_floor_that_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    spreads = {"ours": device_timer.Spread(10.0, 9.0, 11.0), "other": device_timer.Spread(25.0, 24.0, 26.0)}

    def made(**values: float) -> dict[str, Any]:
        return kernel_lines.line_of("op", "case", spreads, {"third": "is absent"}, 7.9e8, "bf16", 8.5e6, values)

    assert (made()["floor_us"], made()["bound"], made()["share"]) == (2.0, "memory", 0.2)
    assert made()["ratios"] == {"other": 2.5} and made()["absent"] == {"third": "is absent"}
    over_the_bus = made(host_floor_us=8.0, host_bytes=440_000.0)
    assert (over_the_bus["floor_us"], over_the_bus["bound"], over_the_bus["share"]) == (8.0, "host link", 0.8)
    assert kernel_lines.rate(over_the_bus) == "44.0 GB/s of the bus"
