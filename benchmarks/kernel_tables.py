"""Tables of kernel lines in Markdown: every op, what invariance costs, published figures, and the short table of targets."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any

from kernel_lines import Line, measured, micros, notices, rate, reached, span, verdict

HEAD = (
    "| case | variant | µs (p10 – p90) | rate | floor, µs | share | target | peers: µs (÷ ours) |\n" + "|---" * 8 + "|"
)
SHORT_TITLE = (
    "Kernels on one H200 against their targets, `python benchmarks/kernels.py`; a peer's number is its time over ours. All "
    "cases: [docs/performance.md](docs/performance.md#kernels-on-an-h200)."
)
SHORT_HEAD = "| kernel | target | measured, least – most | reached | peers' time ÷ ours |\n|---|---|---|---|---|"
PUBLISHED_HEAD = (
    "| figure | published | ours, in | ours | ours ÷ theirs | times as fast | what differs |\n" + "|---" * 7 + "|"
)
INVARIANCE_HEAD = "| op | case | invariant, µs | fast, µs | overhead |\n|---|---|---|---|---|"
MEAN_OVERHEAD = 0.08  # what the same bits in any company may cost
UNITS = {"median_us": "µs", "tflops": "TF", "gbytes_per_s": "GB/s"}
Key = Callable[[Line], Any]


def full_report(lines: Sequence[Line], published: dict[str, Any]) -> str:
    """Where it ran, one table an op, what invariance costs, published figures, and absent peers."""
    parts = [_ran_on(lines)]
    for op, group in _grouped(lines, lambda line: line["op"]):
        parts += [f"**{op}**{_command(group)}", "\n".join([HEAD, *map(_row, group)])]
    parts += [*_invariance(lines), *_beside_published(lines, published)]
    if absent := notices(lines):
        parts += ["Peers that were absent:", "\n".join(f"- {notice}" for notice in absent)]
    return "\n\n".join(parts)


def short_report(lines: Sequence[Line]) -> str:
    """One row for each op and target."""
    aimed = [line for line in lines if reached(line) is not None]
    rows = []
    for (op, target), group in _grouped(aimed, lambda line: (line["op"], line["target"])):
        names = dict.fromkeys(name for line in group for name in line["ratios"])
        peers = ", ".join(
            f"{name} {span([line['ratios'][name] for line in group if name in line['ratios']], '{:.2f}'.format)}"
            for name in names
        )
        done = f"{sum(map(bool, map(reached, group)))} of {len(group)}"
        rows.append(f"| {op} | {target} | {measured(group)} | {done} | {peers} |")
    return "\n".join([SHORT_TITLE, "", SHORT_HEAD, *rows])


def _grouped(lines: Iterable[Line], key: Key) -> list[tuple[Any, list[Line]]]:
    """Groups in the order of their keys, lines within one in the order in which they were timed."""
    return [(found, list(group)) for found, group in groupby(sorted(lines, key=key), key=key)]


def _row(line: Line) -> str:
    spread = f"{micros(line['median_us'])} ({micros(line['p10_us'])} – {micros(line['p90_us'])})"
    floor = f"{micros(line['floor_us'])} ({line['bound']})"
    peers = ", ".join(f"{name} {micros(us)} ({line['ratios'][name]:.2f})" for name, us in line["peers_us"].items())
    share = f"{line['share']:.0%}" if line["share"] >= 0.01 else "< 1%"
    cells = line["case"], line.get("variant", ""), spread, rate(line), floor, share, verdict(line), peers
    return f"| {' | '.join(cells)} |"


def _command(lines: Sequence[Line]) -> str:
    """What times this op alone."""
    files = dict.fromkeys(line["test"].partition(".")[0] for line in lines if line.get("test"))
    return f" · `python benchmarks/kernels.py --only {' '.join(files)}`" if files else ""


def _ran_on(lines: Sequence[Line]) -> str:
    """Devices, commits, and versions of everything, peers included."""
    devices = sorted({f"{line['device']}, CUDA {line['cuda']}" for line in lines})
    versions = sorted({f"{name} {found}" for line in lines for name, found in line["versions"].items()})
    commits = sorted({line["commit"] for line in lines})
    where = f"{'; '.join(devices)}; {', '.join(versions)}; commits {', '.join(commits)}"
    return (
        f"`python benchmarks/kernels.py --record` on {where}. "
        "Floors: the larger of operations at 790 TF (bf16), 1,390 TF (FP8, int8) or 395 TF (TF32) and bytes at 4.25 TB/s, all "
        "measured; over the bus to the host 55 GB/s. A peer's number is its time, in brackets over ours."
    )


def overheads(lines: Sequence[Line]) -> list[tuple[Line, Line, float]]:
    """Invariant line, fast line, and the time of the first over that of the second minus 1, wherever both were timed."""
    by_key = {(line["op"], line["case"], line.get("variant")): line for line in lines}
    fast = [line for line in lines if line.get("variant") == "fast"]
    pairs = [(by_key[line["op"], line["case"], "invariant"], line) for line in fast
             if (line["op"], line["case"], "invariant") in by_key]  # fmt: skip
    return [(invariant, line, invariant["median_us"] / line["median_us"] - 1) for invariant, line in pairs]


def _invariance(lines: Sequence[Line]) -> list[str]:
    """What the same bits in any company cost: case by case, and on average over everything that was timed."""
    pairs = overheads(lines)
    if not pairs:
        return []
    of_case = {(line["op"], line["case"]): extra for line, _, extra in pairs}
    cases = _grouped([line for line in lines if line.get("variant") != "fast"], lambda line: line["op"])
    of_op = {op: fmean(of_case.get((op, line["case"]), 0.0) for line in group) for op, group in cases}
    one_form = [op for op in of_op if not any(op == other for other, _ in of_case)]
    rows = [f"| {line['op']} | {line['case']} | {micros(line['median_us'])} | {micros(fast['median_us'])} | {extra:+.1%} |"
            for line, fast, extra in pairs]  # fmt: skip
    overall = fmean(of_case.get((line["op"], line["case"]), 0.0) for _, group in cases for line in group)
    both, worst = fmean(of_case.values()), max(of_case.values())
    said = (
        f"Invariant over fast: {both:+.1%} on average over the {len(pairs)} cases with both forms (target ≤ "
        f"{MEAN_OVERHEAD:.0%}: {'reached' if both <= MEAN_OVERHEAD else 'missed'}; worst "
        f"{worst:+.1%}), {overall:+.1%} over all {sum(len(group) for _, group in cases)} cases, "
        f"{fmean(of_op.values()):+.1%} over the {len(of_op)} ops. "
        f"Counted 0, since their one form is invariant: cases of these ops without another form, and {', '.join(one_form)}."
    )
    return ["**What the same bits in any company cost**", "\n".join([INVARIANCE_HEAD, *rows]), said]


def _beside_published(lines: Sequence[Line], published: dict[str, Any]) -> list[str]:
    """Public figures for the same op on the same chip; those that no line matches are left out."""
    rows = []
    for point in published["points"]:
        matching = [
            line for line in lines
            if re.fullmatch(point["op"], line["op"]) and re.search(point["case"], line["case"])
            and line.get("variant") != "fast"
        ]  # fmt: skip
        if matching:
            theirs, unit = point["value"], UNITS[point["figure"]]
            ours = median(line[point["figure"]] for line in matching)
            case = (
                matching[0]["case"]
                if len(matching) == 1
                else f"median of {len(matching)} cases like {matching[0]['case']}"
            )
            quick = theirs / ours if point["figure"] == "median_us" else ours / theirs
            figures = f"{theirs:,} {unit}", case, f"{micros(ours)} {unit}", f"{ours / theirs:.2f}", f"{quick:.2f}"
            rows.append(f"| {point['name']} | {' | '.join(figures)} | {point['unlike']} |")
    source = f"Published figures of the same chip ({published['source']}; read {published['date']}):"
    return [source, "\n".join([PUBLISHED_HEAD, *rows])] if rows else []
