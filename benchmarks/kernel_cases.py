"""Recorded timings of kernels as cases that a kernel's time is fitted to: bytes, FLOPs and sizes.

Which lines belong to one kind of kernel is said here, and which are left out and why. The runs with results that do not depend
on the batch count; faster variants that do are timed beside them, and no plan takes them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import result_lines
from msgspec import Struct
from result_lines import Line

from deepinfer.plan.cost.tile_waves import Tiled
from deepinfer.plan.cost.work import expected_experts

RESULTS = tuple(Path(__file__).parent / "results" / name for name in ("kernels.jsonl", "kernel_sizes.jsonl"))
MULTIPROCESSORS = 132  # of an H200
KINDS: dict[str, str] = {  # kind of kernel → op and case of its lines
    "fp8_linear": r"fp8_linear\| .* N=(?P<outputs>\d+) K=(?P<length>\d+) T=(?P<rows>\d+)",
    "fp8_grouped_linear": r"fp8_grouped_linear\| .* T=(?P<rows>\d+)",  # outputs below
    "bf16_linear": r"bf16_linear\| .* N=(?P<outputs>\d+) K=(?P<length>\d+) T=(?P<rows>\d+)",
    "fp4_experts_up": r"fp4_experts w13_swiglu\| (?P<experts>\d+) experts, (?P<rows>\d+) rows (drawn|even|zipf)",
    "fp4_experts_down": r"fp4_experts w2\| (?P<experts>\d+) experts, (?P<rows>\d+) rows (drawn|even|zipf)",
    "sparse_attention": r"sparse_attention\| \w+, ((?P<sequences>\d+) × )?(?P<rows>[\d,]+) rows(, packed)?",
    "index_scores": r"index_scores\| .*, 2 binades",
    "candidate_scores": r"candidate_scores\| .*",
    "top_entries": r"top_entries\| 512 of (?P<length>\d+), (?P<rows>\d+) rows",
    "candidate_blocks": r"candidate_blocks\| 2048 of (?P<blocks>\d+), (?P<rows>\d+) rows",
    "hyper_border": r"hyper_border\| two sites, \d+ rows",
    "norm_quantise": r"norm_quantise\| .* to (grid|codes)",
    "quantise": r"quantise\| .* to (grid|codes)",
    "norm_rope_store_window": r"norm_rope_store_window\| .*",
    "compress_store": r"compress_store\| .*, bfloat16",
    "index_store": r"index_store\| .*",
    "rotate_quantise_index_q": r"rotate_quantise_index_q\| .*",
    "router": r"router\| \d+ x 384, .*",
    "expert_permutation": r"expert_permutation\| .*",
    "combine": r"combine\| .*",
    "swiglu_quantise": r"swiglu_quantise\| .*",
    "engram_gather": r"engram_gather\| .* in device memory",
    "engram_add": r"engram_add\| .*",
    "sample_rows": r"sample rows\| \d+ rows, temperature",
    "markov_step": r"markov step\| \d+ sequences, coupled",
    "accepted_lengths": r"accepted lengths\| .*",
}
OUTPUTS = {
    "fp8_grouped_linear": 8192,
    "fp4_experts_up": 4608,
    "fp4_experts_down": 5120,
}  # where a case does not say them
COLUMNS = {"fp8_grouped_linear": 4096}
BLOCK = 8  # entries of a candidate block
LEFT_OUT = {
    "fast": "results that depend on the batch",
    "lossy": "results that depend on the batch",
    "9 binades": "index keys of widely different scales take a slower form of the kernel",
}


class Case(Struct, frozen=True, kw_only=True):
    """One timing; sizes as deepinfer/plan/cost/kernel_time.py and tile_waves.py take them."""

    kind: str
    name: str
    seconds: float
    num_bytes: float
    flops: float
    length: float
    product: Tiled
    cached: bool  # its rows lie in the second-level cache


class Origin(Struct, frozen=True, kw_only=True):
    """Where the lines come from."""

    device: str
    commit: str


def read(paths: Sequence[Path] = RESULTS) -> list[Line]:
    return [line for path in paths for line in result_lines.read(path)]


def cases_of(lines: Sequence[Line]) -> dict[str, list[Case]]:
    """Kind of kernel → its cases; of several lines of one case the last, which is the newest."""
    found: dict[str, dict[str, Case]] = {kind: {} for kind in KINDS}
    for line in lines:
        for case in _cases(line):
            found[case.kind][case.name] = case
    return {kind: list(cases.values()) for kind, cases in found.items() if cases}


def origin_of(lines: Sequence[Line]) -> Origin:
    devices = {str(line["device"]) for line in lines}
    commits = sorted({str(line["commit"]) for line in lines})
    assert len(devices) == 1, f"lines of several devices: {devices}"
    return Origin(device=devices.pop(), commit=" ".join(commits))


def _cases(line: Line) -> Iterator[Case]:
    if line.get("variant", "-") in LEFT_OUT:
        return
    text = f"{line['op']}| {line['case']}"
    seconds = float(line["median_us"]) * 1e-6
    for kind, pattern in KINDS.items():
        match = re.fullmatch(pattern, text)
        if match is None:
            continue
        size = {name: float(value.replace(",", "")) for name, value in match.groupdict().items() if value}
        length = size.get("length", BLOCK * size.get("blocks", 0.0))
        yield Case(
            kind=kind,
            name=str(line["case"]),
            seconds=seconds,
            num_bytes=float(line["gbytes_per_s"] or 0) * 1e9 * seconds,
            flops=float(line["tflops"] or 0) * 1e12 * seconds,
            length=length,
            product=_product(kind, size, length, even=text.endswith(" even")),
            cached=bool(line.get("cached")),
        )


def _product(kind: str, size: Mapping[str, float], length: float, even: bool) -> Tiled:
    rows = size.get("rows", 0.0) * size.get("sequences", 1.0)
    outputs = size.get("outputs", OUTPUTS.get(kind, 0.0))
    if "experts" not in size:
        return Tiled(rows, outputs, COLUMNS.get(kind, length))
    chosen = expected_experts(size["experts"], size["experts"], 1, rows)
    return Tiled(rows / chosen, outputs * chosen, ragged=not even)
