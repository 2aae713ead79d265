"""The engine's GPU tables of docs/performance.md and README.md: the tiny model with each feature on and off, and beside a peer.

    python benchmarks/gpu_report.py [--write | --check]

From benchmarks/results/gpu_throughput.jsonl and peer_transformers.jsonl; the latest line of each cell counts, and none of
another device than an H200. Without an option the tables are printed; `--write` puts them between the pages' markers;
`--check` fails where they are not current.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markers import misplaced, put_between
from record import RESULTS, options
from transformers_v4 import DIFFERENCES

DEVICE = "NVIDIA H200"
ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
BEGIN, END = "<!-- engine on a GPU: begin -->", "<!-- engine on a GPU: end -->"
ROW_END = "| `python benchmarks/peer_transformers.py` |"
NAMES = {"tiny": "", "wide": "at the release's widths, 4 layers, "}
Line = dict[str, Any]


def latest(lines: Iterable[Line], *keys: str) -> dict[tuple[Any, ...], Line]:
    """The last line of each cell, in the order in which cells first came."""
    found: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        found[tuple(line[key] for key in keys)] = line
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def surroundings(lines: Sequence[Line], *packages: str) -> str:
    """Device, versions and commits of the lines."""
    devices = sorted({line.get("device", line["machine"]["cpu"]) for line in lines})
    versions = [
        f"{name} {line['versions'][name]}" for line in lines[-1:] for name in packages if name in line["versions"]
    ]
    commits = sorted({line["commit"].replace("+dirty", " with changes not committed then") for line in lines})
    return f"{', '.join(devices)}; {', '.join(versions)}; commit {', '.join(commits)}"


def features_report(lines: Sequence[Line]) -> str:
    """Rows are features, columns numbers of users: tokens/s with it, and over those without."""
    cells = latest(lines, "feature", "batch")
    batches = sorted({batch for _, batch in cells})

    def row(feature: str) -> list[str]:
        own = [cells.get((feature, batch)) for batch in batches]
        some = next(line for line in own if line)
        equal = [line["equal_answers"] for line in own if line and line["equal_answers"] is not None]
        same = f"{min(equal):.1%}".replace("100.0%", "all") if equal else "–"
        kept = same if some["promise"] == "same tokens" else f"{same} ({some['promise'].removeprefix('none: ')})"
        return [feature, some["load"], *(cell(line) for line in own), kept]

    def cell(line: Line | None) -> str:
        return f"{line['on_tokens_per_s']:,.0f} · {line['ratio']:.2f} ×" if line else "–"

    head = ["feature", "load", *(f"B = {batch}" for batch in batches), "answers equal"]
    names = list(dict.fromkeys(feature for feature, _ in cells))
    told = surroundings(list(cells.values()), "torch", "triton", "cuda-bindings")
    return f"{table(head, map(row, names))}\n\n`python benchmarks/gpu_throughput.py --record` on {told}."


def peer_report(lines: Sequence[Line]) -> str:
    """A row for each width and batch: tokens/s of ours, the floor's share of the time, and how many times the peer's."""
    cells = latest(lines, "width", "batch")

    def row(line: Line) -> list[str]:
        width = f"{line['width']}, {line['layers']} layers, {line['experts']} experts"
        return [width, str(line["batch"]), *(text for what in ("decode", "prefill") for text in figures(line, what))]

    def figures(line: Line, what: str) -> list[str]:
        sides = ("transformers", "transformers_compiled")[: 1 if what == "prefill" else 2]
        ratios = [line.get(f"{side}_{what}_ratio") for side in sides]
        rate, floor_ms = line[f"deepinfer_{what}_tokens_per_s"], line.get(f"{what}_floor_ms")
        tokens = line["batch"] * (line["context"] if what == "prefill" else 1)
        share = "–" if floor_ms is None else f"{floor_ms * rate / tokens / 10:.1f} %"
        return [f"{rate:,.0f}", share, *(f"{ratio:.1f}" if ratio is not None else "–" for ratio in ratios)]

    decode = ["decode, tokens/s", "of the floor's speed", "÷ eager", "÷ graphs"]
    head = ["width", "B", *decode, "prefill, tokens/s", "of the floor's speed", "÷ eager"]
    told = surroundings(list(cells.values()), "torch", "transformers", "triton")
    widths = " ".join(dict.fromkeys(width for width, _ in cells))
    command = f"`python benchmarks/peer_transformers.py --widths {widths} --record`"
    return (
        f"{table(head, map(row, cells.values()))}\n\n{command} on {told}. The peer differs: {'; '.join(DIFFERENCES)}."
    )


def readme_row(lines: Sequence[Line]) -> str:
    """A row of the README's table of figures: decode beside the peer at each width; nothing where there are no lines."""
    cells = latest(lines, "width", "batch")
    widths = {width: sorted((line for (own, _), line in cells.items() if own == width), key=_batch) for width in NAMES}
    if not widths["tiny"]:
        return ""
    where, batches = widths["tiny"][-1].get("device", "CPU"), _row(widths["tiny"], "batch")
    told = "; ".join(f"{NAMES[width]}{_beside(own)}" for width, own in widths.items() if own)
    return f"| decode on one {where}, B = {batches} | {told} {ROW_END}"


def _batch(line: Line) -> int:
    return int(line["batch"])


def _beside(lines: Sequence[Line]) -> str:
    """Rates, and how many times those of each kind of peer."""
    sides = (("the peer run eagerly", "transformers"), ("it with CUDA graphs of fixed parts", "transformers_compiled"))
    beside = [(how, _row(lines, f"{side}_decode_ratio")) for how, side in sides]
    ratios = ", ".join(f"{ratios} × {how}" for how, ratios in beside if ratios)
    return f"{_row(lines, 'deepinfer_decode_tokens_per_s')} tokens/s: {ratios}"


def with_row(page: str, row: str) -> str:
    """The page with its row of the same command replaced. ValueError where it has none, or more than one."""
    lines = page.split("\n")
    own = [i for i, line in enumerate(lines) if line.endswith(ROW_END)]
    if len(own) != 1:
        raise ValueError(f"README.md has {len(own)} lines that end in {ROW_END}: leave one in its table of figures")
    lines[own[0]] = row
    return "\n".join(lines)


def _row(lines: Sequence[Line], key: str) -> str:
    """Values side by side, small ones with a decimal; nothing where one is missing."""
    if not all(key in line for line in lines):
        return ""
    values = [line[key] for line in lines]
    return " / ".join(f"{value:,.1f}" if value < 10 and key.endswith("ratio") else f"{value:,.0f}" for value in values)


def read(name: str) -> list[Line]:
    """Recorded lines of the device that the pages are about."""
    path = RESULTS / f"{name}.jsonl"
    texts = path.read_text("utf-8").splitlines() if path.is_file() else []
    return [line for line in map(json.loads, texts) if line.get("device") == DEVICE]


def main() -> None:
    parser = options(__doc__)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--write", action="store_true", help="put the tables between the page's markers")
    asked.add_argument("--check", action="store_true", help="fail where the page is not current")
    args = parser.parse_args()
    features, peers = read("gpu_throughput"), read("peer_transformers")
    if not features and not peers:
        sys.exit("no lines yet; on a GPU type: python benchmarks/gpu_throughput.py --record")
    tables = [report(lines) for report, lines in ((features_report, features), (peer_report, peers)) if lines]
    text, row = "\n\n".join(tables), readme_row(peers)
    if not args.write and not args.check:
        print(text, row, sep="\n\n")
        return
    pages = {path: path.read_text("utf-8") for path in (PAGE, README)}
    if why := misplaced(pages[PAGE], BEGIN, END):
        sys.exit(f"{PAGE.name} {why}")
    try:
        new = {PAGE: put_between(pages[PAGE], BEGIN, END, text), README: with_row(pages[README], row)}
    except ValueError as fault:
        sys.exit(str(fault))
    stale = [path for path in pages if pages[path] != new[path]]
    if args.check and stale:
        names = ", ".join(path.name for path in stale)
        sys.exit(f"out of date: {names}; type: python benchmarks/gpu_report.py --write")
    for path in stale:
        path.write_text(new[path], "utf-8")


if __name__ == "__main__":
    main()
