"""The kernels' tables of docs/performance.md and README.md, from benchmarks/results/kernels.jsonl.

    python benchmarks/kernels_report.py [--write | --check]

The latest line of each op, case and variant counts. `--write` puts the tables between the pages' markers; `--check` says
whether they are current and fails where they are not. Published figures come from benchmarks/published/kernels_h200.yaml.
"""

import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from cost_accuracy import between, put_between
from kernel_lines import Line, beside, latest, micros, notices, rate, reached, read, times_floor, verdict
from record import RESULTS, options

HERE = Path(__file__).parent
PAGES = {"performance": HERE.parent / "docs" / "performance.md", "readme": HERE.parent / "README.md"}
PUBLISHED = HERE / "published" / "kernels_h200.yaml"
BEGIN, END = "<!-- kernels: begin -->", "<!-- kernels: end -->"
HEAD = (
    "| case | variant | µs (p10 – p90) | rate | floor, µs | share | target | peers' time ÷ ours |\n" + "|---" * 8 + "|"
)
SHORT_HEAD = "| kernel | measured (target) | reached | peers' time ÷ ours |\n|---|---|---|---|"
PUBLISHED_HEAD = "| figure | published | ours, in | ours | times as fast | what differs |\n|---|---|---|---|---|---|"
UNITS = {"median_us": "µs", "tflops": "TF", "gbytes_per_s": "GB/s"}


def full_report(lines: Sequence[Line], published: dict[str, Any]) -> str:
    """One table an op, what invariance costs, published figures, absent peers, and where it ran."""
    parts = [_ran_on(lines)]
    for op, group in groupby(sorted(lines, key=lambda line: line["op"]), key=lambda line: line["op"]):
        parts += [f"**{op}**", "\n".join([HEAD, *map(_row, group)])]
    parts += [*_invariance(lines), *_beside_published(lines, published)]
    if absent := notices(lines):
        parts += ["Peers that were absent:", "\n".join(f"- {notice}" for notice in absent)]
    return "\n\n".join(parts)


def short_report(lines: Sequence[Line]) -> str:
    """One row for each op that has a target."""
    aimed = sorted((line for line in lines if reached(line) is not None), key=lambda line: line["op"])
    rows = []
    for op, grouped in groupby(aimed, key=lambda line: line["op"]):
        group = list(grouped)
        cases = "; ".join(f"{line['case']}: {_against_target(line)} ({line['target']})" for line in group)
        names = dict.fromkeys(name for line in group for name in line.get("ratios", {}))
        spans = ", ".join(
            f"{name} {_span([line['ratios'][name] for line in group if name in line['ratios']])}" for name in names
        )
        rows.append(f"| {op} | {cases} | {sum(map(bool, map(reached, group)))} of {len(group)} | {spans} |")
    return "\n".join([SHORT_HEAD, *rows])


def _row(line: Line) -> str:
    spread = f"{micros(line['median_us'])} ({micros(line['p10_us'])} – {micros(line['p90_us'])})"
    floor = f"{micros(line['floor_us'])} ({line['bound']})"
    cells = line.get("variant", ""), spread, rate(line), floor, f"{line['share']:.0%}", verdict(line), beside(line)
    return f"| {line['case']} | {' | '.join(cells)} |"


def _against_target(line: Line) -> str:
    """The figure in the target's unit."""
    if "µs" in line["target"] or " us" in line["target"]:
        return f"{micros(line['median_us'])} µs"
    if "TF" in line["target"] or "B/s" in line["target"]:
        return rate(line)
    return f"{line['share']:.0%}" if "%" in line["target"] else f"{times_floor(line):.2f} ×"


def _span(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"{low:.2f}" if len(ratios) == 1 else f"{low:.2f} – {high:.2f}"


def _ran_on(lines: Sequence[Line]) -> str:
    """Devices, versions and commits of all lines."""
    devices = sorted({f"{line['device']}, CUDA {line['cuda']}" for line in lines})
    versions = sorted({f"{name} {line['versions'][name]}" for line in lines for name in ("torch", "triton")})
    commits = sorted({line["commit"] for line in lines})
    return f"On {'; '.join(devices)}; {', '.join(versions)}; commits {', '.join(commits)}."


def _invariance(lines: Sequence[Line]) -> list[str]:
    """Mean overhead of invariant variants over the fast ones of the same case, where both were timed."""
    times = {(line["op"], line["case"], line.get("variant")): line["median_us"] for line in lines}
    pairs = [times[op, case, "invariant"] / us - 1 for (op, case, variant), us in times.items()
             if variant == "fast" and (op, case, "invariant") in times]  # fmt: skip
    if not pairs:
        return []
    mean, worst = sum(pairs) / len(pairs), max(pairs)
    return [f"Invariant over fast, {len(pairs)} cases with both: {mean:+.1%} on average, worst {worst:+.1%}."]


def _beside_published(lines: Sequence[Line], published: dict[str, Any]) -> list[str]:
    """Public figures for the same op on the same chip; those that no line matches are left out."""
    rows = []
    for point in published["points"]:
        for line in lines:
            if re.fullmatch(point["op"], line["op"]) and re.search(point["case"], line["case"]):
                ours, theirs, unit = line[point["figure"]], point["value"], UNITS[point["figure"]]
                ratio = theirs / ours if point["figure"] == "median_us" else ours / theirs
                cells = f"{theirs:,} {unit}", line["case"], f"{micros(ours)} {unit}", f"{ratio:.2f}", point["unlike"]
                rows.append(f"| {point['name']} | {' | '.join(cells)} |")
    source = f"Published figures of the same chip ({published['source']}; read {published['date']}):"
    return [source, "\n".join([PUBLISHED_HEAD, *rows])] if rows else []


def main() -> None:
    parser = options(__doc__)
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--write", action="store_true", help="put the tables between the markers of both pages")
    asked.add_argument("--check", action="store_true", help="fail where a page is not current")
    args = parser.parse_args()
    lines = latest(read(RESULTS / "kernels.jsonl"))
    if not lines:
        sys.exit("no lines yet; on a GPU type: python benchmarks/kernels.py --record")
    published = yaml.safe_load(PUBLISHED.read_text("utf-8"))
    texts = {"performance": full_report(lines, published), "readme": short_report(lines)}
    pages = {name: PAGES[name].read_text("utf-8") for name in texts}
    if not args.write and not args.check:
        print("\n\n".join(texts.values()))
        return
    for name, page in pages.items():  # all, before any is written
        if BEGIN not in page or END not in page:
            sys.exit(f"{PAGES[name].name} lacks the lines {BEGIN} and {END}, between which its table goes")
    stale = [name for name, text in texts.items() if between(pages[name], BEGIN, END) != text]
    if args.check and stale:
        names = ", ".join(PAGES[name].name for name in stale)
        sys.exit(f"out of date: {names}; type: python benchmarks/kernels_report.py --write")
    for name in stale:
        PAGES[name].write_text(put_between(pages[name], BEGIN, END, texts[name]), "utf-8")


if __name__ == "__main__":
    main()
