"""Tables and picture of one rank's recorded steps."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from result_lines import Line

from deepinfer.cli.bench_slice_report import MOST_OPS, RELEASE, RELEASE_PEAK, comparable, memory_line

BEGIN, END = "<!-- rank slice: begin -->", "<!-- rank slice: end -->"
DECODE_HEAD = (
    "| sequences | rows | context | routing | step, ms | of it drafting | floor, ms | share | tokens/s of the GPU |"
    " with links added (modelled) | links alone, ms (modelled) | tokens/s of a user |\n" + "|---:" * 12 + "|"
)
PREFILL_HEAD = (
    "| prompt | at a time | replay | routing | ms | floor, ms | share | tokens/s of the GPU | with links added (modelled) |\n"
    + "|---:" * 9
    + "|"
)
OPS_HEAD = "| operation | first operand → result | calls | ms | of all |\n|---|---|---:|---:|---:|"


def tables(lines: Sequence[Line]) -> str:
    parts = [_ran_on(lines)]
    shown = {line["step"].split()[0]: line for line in reversed(_of(lines, "ops"))}.values()  # the first of each phase
    kept = [line for line in lines if line["what"] != "ops" or line in shown]
    for line in _of(lines, "share"):
        parts += list(_run(line, [other for other in kept if other["run"] == line["run"]]))
    assumed = dict.fromkeys(text for line in _of(lines, "share") for text in line["assumed"])
    parts.append("\n".join(f"- {text}" for text in assumed))
    return "\n\n".join(parts)


def _run(share: Line, lines: Sequence[Line]) -> Iterator[str]:
    held = share["bytes"]
    experts = f"one of {share['expert_ranks']} ranks, {share['share']['experts']} of a layer's experts"
    weights = f"weights with rotations {held['weights'] / 1e9:.2f} GB (weights planned {held['weights_planned'] / 1e9:.2f} GB)"
    made = f"caches {held['caches'] / 1e9:.1f} GB, made in {share['seconds_to_build']:.1f} s"
    yield f"**{share['layout']}**: {experts}; {weights}, {made}."
    for line in _of(lines, "memory"):
        yield f"Of an engine's limits: {memory_line(line)}."
    if points := _of(lines, "decode"):
        yield "\n".join([DECODE_HEAD, *map(_decode_row, points)])
        yield from _beside(share, "decode", points)
    if points := _of(lines, "prefill"):
        yield "\n".join([PREFILL_HEAD, *map(_prefill_row, points)])
        yield from _beside(share, "prefill", points)
    for line in _of(lines, "ops"):
        yield f"Where the time goes: {line['step']}, inside a CUDA graph."
        yield "\n".join([OPS_HEAD, *_op_rows(line["entries"])])


def _decode_row(p: Line) -> str:
    drafting = "" if p["drafting_ms"] is None else f"{p['drafting_ms']:.2f}"
    cells = (
        f"{p['sequences']:,}", f"{p['rows']:,}", f"{p['context']:,}", _routing(p), f"{p['ms']:.2f}", drafting,
        f"{p['floor_ms']:.2f}", f"{100 * p['share']:.0f} %", f"{p['tokens_per_s']:,.0f}",
        f"{p['tokens_per_s_links_added']:,.0f}", f"{p['exchange_ms']:.1f}", f"{p['tokens_per_s_per_user']:.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _prefill_row(p: Line) -> str:
    cells = (
        f"{p['tokens']:,}", f"{p['chunk_tokens']:,}", "none" if p["keep"] is None else "compact", _routing(p),
        f"{p['ms']:.1f}", f"{p['floor_ms']:.1f}", f"{100 * p['share']:.0f} %", f"{p['tokens_per_s']:,.0f}",
        f"{p['tokens_per_s_links_added']:,.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _op_rows(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    total, rest = sum(entry["ms"] for entry in entries), entries[MOST_OPS:]
    rows = [(e["op"], e["shape"], e["calls"], e["ms"]) for e in entries[:MOST_OPS]]
    if rest:
        rows.append(("the rest", "", sum(e["calls"] for e in rest), sum(e["ms"] for e in rest)))
    for op, shape, calls, ms in rows:
        yield f"| {op} | {shape} | {calls} | {ms:.3f} | {100 * ms / total:.1f} % |"


def _beside(share: Line, phase: str, points: Sequence[Line]) -> Iterator[str]:
    quoted, where = RELEASE[phase]
    scale = share["peak_flops"] / RELEASE_PEAK
    best = comparable(points)
    user = f" at {best['tokens_per_s_per_user']:.0f} a user" if phase == "decode" else ""
    rates = (
        f"{best['tokens_per_s']:,.0f} tokens/s of this GPU without links{user}, {best['tokens_per_s_links_added']:,.0f}"
    )
    yield (
        f"Beside the release: {rates} with the modelled links added. It is quoted with {quoted:,} tokens/s of a GPU ({where}; "
        f"press reports, the original was not read): × {scale:.3f} by the FP8 peaks of the data sheets {quoted * scale:,.0f}."
    )


def _ran_on(lines: Sequence[Line]) -> str:
    versions = sorted({f"{name} {found}" for line in lines for name, found in line["versions"].items()})
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    command = f"`python benchmarks/rank_slice.py --record` on one {lines[0]['hardware']}"
    return f"{command}; {', '.join(versions)}; commit {commits}."


def _routing(point: Line) -> str:
    return point["routing"] + (f" × {point['load']:.1f}" if point["load"] > 1 else "")


def _of(lines: Sequence[Line], what: str) -> list[Line]:
    return [line for line in lines if line["what"] == what]


def draw(lines: Sequence[Line], path: Path) -> None:
    """Tokens/s of the GPU against those of a user, a curve for each context, rows of a sequence and routing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5.6), dpi=110)
    points = [line for line in _of(lines, "decode") if line["run"] == "ep64"]
    curves = _curves(points)
    contexts = sorted({context for context, _, _ in curves})
    for (context, each, routing), curve in curves.items():
        colour = f"C{contexts.index(context)}"
        style = {"balanced": "-", "skewed": ":"}[routing] if each > 1 else {"balanced": "--", "skewed": "-."}[routing]
        name = f"{context // 1024}K, {'6 rows a sequence' if each > 1 else '1 row'}, {routing}"
        axes.plot(
            *zip(*curve),
            style,
            color=colour,
            alpha=1 if routing == "balanced" else 0.5,
            marker="o",
            markersize=3,
            label=name,
        )
    _draw_release(axes, lines)
    axes.set_xlabel("tokens/s of a user")
    axes.set_ylabel("tokens/s of one GPU")
    axes.set_yscale("log")
    axes.set_title("V4.1-Flash, one rank of ep64 on one H200: measured, without links", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _curves(points: Sequence[Line]) -> dict[tuple[int, int, str], list[tuple[float, float]]]:
    """Of at least two points; one alone is in the tables."""
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    for p in points:
        key = p["context"], p["rows_each"], p["routing"]
        found.setdefault(key, []).append((p["tokens_per_s_per_user"], p["tokens_per_s"]))
    return {key: sorted(curve) for key, curve in sorted(found.items()) if len(curve) > 1}


def _draw_release(axes: Any, lines: Sequence[Line]) -> None:
    peak = next(line["peak_flops"] for line in _of(lines, "share"))
    quoted = RELEASE["decode"][0]
    axes.plot(
        100, quoted * peak / RELEASE_PEAK, "k*", markersize=12, label="release on SM100, scaled by FP8 peak (press)"
    )
