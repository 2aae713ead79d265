"""Tables of kernel lines in Markdown: every op, what invariance costs, published figures, and the short table of targets."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, takewhile
from statistics import fmean, median
from typing import Any

from device_timer import COPY_BYTES_PER_S, PEAK_FLOPS
from kernel_lines import Line, aim, measured, micros, notices, rate, reached, span, verdict
from kernel_names import OPERATIONS, PEERS, PLAIN_COPY, place

HEAD = ("time, µs (p10 – p90)", "rate", "floor, µs", "share", "target", "peers: µs (÷ our time)")
SHORT_HEAD = (
    "| operation | target | reached | measured, least – most | fastest peers: time ÷ ours |\n|---|---|---|---|---|"
)
SHOWN_PEERS = 2
COPY_TB_PER_S = COPY_BYTES_PER_S / 1e12
PUBLISHED_HEAD = (
    "| figure | published | ours, in | ours | ours ÷ theirs | times as fast as theirs | what differs |\n"
    + "|---" * 7
    + "|"
)
INVARIANCE_HEAD = "| op | case | invariant, µs | fast, µs | overhead |\n|---|---|---|---|---|"
MEAN_OVERHEAD = 0.08  # what the same bits in any company may cost
UNITS = {"median_us": "µs", "tflops": "TF", "gbytes_per_s": "GB/s"}
Key = Callable[[Line], Any]


def full_report(lines: Sequence[Line], published: dict[str, Any]) -> str:
    """Where it ran, one table an op, what invariance costs, published figures, and absent peers."""
    parts = [_ran_on(lines)]
    for (_, op), group in _grouped(lines, lambda line: place(line["op"])):
        parts += [f"**{op}**{_meaning(op)} · {_command(group)}", _table(group)]
    parts += [*_invariance(lines), *_beside_published(lines, published)]
    if absent := notices(lines):
        parts += ["Peers that were absent:", "\n".join(f"- {notice}" for notice in absent)]
    return "\n\n".join(parts)


def short_report(lines: Sequence[Line]) -> str:
    """One row for each op, with a line for each of its targets, and how many cases reach theirs."""
    aimed = [line for line in lines if reached(line) is not None]
    rows = []
    for (_, op), group in _grouped(aimed, lambda line: place(line["op"])):
        named = f"{OPERATIONS[op][0]} (`{op}`)" if op in OPERATIONS else f"`{op}`"
        each = [(f"{target}{_where(cases)}", _done(cases), measured(cases), _fastest(cases))
                for target, cases in _grouped(group, aim)]  # fmt: skip
        rows.append(f"| {named} | {' | '.join('<br>'.join(cells) for cells in zip(*each))} |")
    title = (
        f"Kernels on one H200, `python benchmarks/kernels.py`: {_done(aimed)} cases that have a target reach it. A floor is "
        f"the least time that the chip's measured rates allow, copy bandwidth is {COPY_TB_PER_S} TB/s read and written; "
        "above 1 a peer is slower than ours. "
        "All cases, and why some miss: [docs/performance.md](docs/performance.md#kernels-on-an-h200)."
    )
    return "\n".join([title, "", SHORT_HEAD, *rows])


def _done(lines: Sequence[Line]) -> str:
    return f"{sum(map(bool, map(reached, lines)))} of {len(lines)}"


def _where(lines: Sequence[Line]) -> str:
    """What the cases have in common, then the first and the last; nothing where the target says where it holds."""
    parts = [_case(line).split(", ") for line in lines]
    common = [part[0] for part in takewhile(lambda part: len(set(part)) == 1, zip(*parts))]
    if " at " in aim(lines[0]) or not common:
        return ""
    ends = [", ".join(part[len(common) :]) for part in (parts[0], parts[-1])]
    return f" ({', '.join(common)}{f': {ends[0]} … {ends[1]}' if len(lines) > 1 else ''})"


def _fastest(lines: Sequence[Line]) -> str:
    """The fastest peers; a copy of as many bytes comes after real ones."""
    ratios: dict[str, list[float]] = {}
    for line in lines:
        for name, ratio in line["ratios"].items():
            ratios.setdefault(PEERS.get(name, name), []).append(ratio)
    names = sorted(ratios, key=lambda name: (name == PLAIN_COPY, median(ratios[name])))
    return "; ".join(f"{name} {span(ratios[name], '{:.2f}'.format)}" for name in names[:SHOWN_PEERS]) or "–"


def _grouped(lines: Iterable[Line], key: Key) -> list[tuple[Any, list[Line]]]:
    """Groups in the order of their keys, lines within one in the order in which they were timed."""
    return [(found, list(group)) for found, group in groupby(sorted(lines, key=key), key=key)]


def _table(lines: Sequence[Line]) -> str:
    """One row a case; variants have a column where there are several."""
    several = len({line.get("variant", "") for line in lines}) > 1
    heads = ("case", *(("variant",) if several else ()), *HEAD)
    rows = [(_case(line), *((line.get("variant", ""),) if several else ()), *_cells(line)) for line in lines]
    return "\n".join(
        [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def _cells(line: Line) -> tuple[str, ...]:
    spread = f"{micros(line['median_us'])} ({micros(line['p10_us'])} – {micros(line['p90_us'])})"
    floor = f"{micros(line['floor_us']) if line['floor_us'] >= 0.001 else '< 0.001'} ({line['bound']})"
    peers = ", ".join(f"{name} {micros(us)} ({line['ratios'][name]:.2f})" for name, us in line["peers_us"].items())
    share = _percent(line["share"]) if line["share"] >= 0.01 else "< 1 %"
    return spread, rate(line), floor, share, verdict(line), peers


def _case(line: Line) -> str:
    """As the test names it, with × between numbers and one of one."""
    return re.sub(r"\b1 (\w+)s\b", r"1 \1", re.sub(r"(?<=\d) ?x ?(?=\d)", " × ", line["case"]))


def _percent(share: float, form: str = ".0f") -> str:
    return f"{100 * share:{form}} %".replace("-", "−")


def _meaning(op: str) -> str:
    """What the op does, and how its cases are read."""
    return f": {'. Case: '.join(OPERATIONS[op])}" if op in OPERATIONS else ""


def _command(lines: Sequence[Line]) -> str:
    """What times this op alone."""
    files = dict.fromkeys(line["test"].partition(".")[0] for line in lines if line.get("test"))
    return f"`python benchmarks/kernels.py --only {' '.join(files)}`" if files else "`python benchmarks/kernels.py`"


def _ran_on(lines: Sequence[Line]) -> str:
    """Devices, commits, and versions of everything, peers included."""
    devices = sorted({f"{line['device']}, CUDA {line['cuda']}" for line in lines})
    versions = sorted({f"{name} {found}" for line in lines for name, found in line["versions"].items()})
    commits = Counter(line["commit"] for line in lines)
    kept = ", ".join(f"{commit.replace('+dirty', ' with changes not committed then')} ({count} cases)"
                     for commit, count in sorted(commits.items()))  # fmt: skip
    bf16, fp8, tf32 = (f"{PEAK_FLOPS[dtype] / 1e12:,.0f} TF" for dtype in ("bf16", "fp8", "tf32"))
    return (
        f"`python benchmarks/kernels.py --record` on {'; '.join(devices)}; {', '.join(versions)}; commit {kept}. "
        f"Floors: the larger of operations at {bf16} (bf16), {fp8} (FP8, int8) or {tf32} (TF32) and bytes at "
        f"{COPY_TB_PER_S} TB/s, all measured; over the bus to the host 55 GB/s."
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
    rows = []
    for line, fast, extra in pairs:
        times = micros(line["median_us"]), micros(fast["median_us"])
        rows.append(f"| {line['op']} | {_case(line)} | {' | '.join(times)} | {_percent(extra, '+.1f')} |")
    overall = fmean(of_case.get((line["op"], line["case"]), 0.0) for _, group in cases for line in group)
    both, worst = fmean(of_case.values()), max(of_case.values())
    said = (
        f"Invariant over fast: {_percent(both, '+.1f')} on average over the {len(pairs)} cases with both forms (target ≤ "
        f"{_percent(MEAN_OVERHEAD)}: {'reached' if both <= MEAN_OVERHEAD else 'missed'}; worst "
        f"{_percent(worst, '+.1f')}), {_percent(overall, '+.1f')} over all {sum(len(group) for _, group in cases)} cases, "
        f"{_percent(fmean(of_op.values()), '+.1f')} over the {len(of_op)} ops. "
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
                _case(matching[0])
                if len(matching) == 1
                else f"median of {len(matching)} cases like {_case(matching[0])}"
            )
            quick = theirs / ours if point["figure"] == "median_us" else ours / theirs
            figures = f"{theirs:,} {unit}", case, f"{micros(ours)} {unit}", f"{ours / theirs:.2f}", f"{quick:.2f}"
            rows.append(f"| {point['name']} | {' | '.join(figures)} | {point['unlike']} |")
    source = f"Published figures of the same chip ({published['source']}; read {published['date']}):"
    return [source, "\n".join([PUBLISHED_HEAD, *rows])] if rows else []
