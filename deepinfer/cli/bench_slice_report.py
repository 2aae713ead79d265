"""The tables of one rank's steps: measured times, floors, modelled links, rates, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from deepinfer.plan.columns import aligned
from deepinfer.plan.cost.types import Figure
from deepinfer.plan.quantities import size

RELEASE = {  # tokens/s of one GPU, as press reports of the release quote it; the original table was not read
    "decode": (26_000, "64 SM100 GPUs in one scale-up domain, about 100 tokens/s a user"),
    "prefill": (86_000, "4 SM100 GPUs in one scale-up domain"),
}
RELEASE_USER = 100.0  # tokens/s
RELEASE_PEAK = 5.0e15  # FP8 FLOP/s of such a GPU, conf/hardware/gb200.yaml
MOST_OPS = 24
Row = Sequence[str]


def report(result: dict[str, Any]) -> str:
    parts = [f"one rank of {result['layout'] or result['num_ranks']} · {result['model_id']} on {result['hardware']}"]
    for role in result["roles"]:
        parts += ["\n".join(lines) for lines in _role(role) if lines]
    return "\n\n".join(parts)


def _role(role: dict[str, Any]) -> Iterator[list[str]]:
    share, held = role["share"], role["bytes"]
    yield [
        f"{role['role']}: {share['experts']} experts a layer of {role['expert_ranks']} ranks, "
        f"{sum(share['table_rows']):,} n-gram rows ({role['engram']}), "
        f"weights {_weights(held)}, made in {role['seconds_to_build']:.1f} s"
    ]
    if role.get("memory"):
        yield [memory_line(role["memory"])]
    if role.get("decode"):
        yield decode_table(role["decode"])
    if role.get("prefill"):
        yield prefill_table(role["prefill"])
    yield from ([name, *op_table(entries)] for name, entries in role["ops"].items())
    yield list(beside_release(role))
    yield [*(f"assumed  {line}" for line in role["assumed"]), *(f"note     {line}" for line in role["notes"])]


def spoken(line: dict[str, Any]) -> str:
    """A point, or the rank's bytes, on one line while it is measured; nothing for anything else."""
    if line["what"] == "decode":
        size = f"{line['rows']:,} rows of {line['sequences']:,} sequences at {line['context']:,} tokens"
    elif line["what"] == "prefill":
        size = f"{line['tokens']:,} tokens, replay {'none' if line['keep'] is None else 'compact'}"
    elif line["what"] == "memory":
        return memory_line(line)
    else:
        return ""
    return f"{line['what']} of {size}, {line['routing']}: {line['ms']:.2f} ms"


def memory_line(found: dict[str, Any]) -> str:
    """What the rank holds between steps and what its largest step takes, without cache blocks: planned and measured."""
    total, planned = (found[a] + found[b] for a, b in (("held", "step"), ("planned_held", "planned_step")))
    return (
        f"memory without cache blocks: held {size(found['held'], 5)} (planned {size(found['planned_held'], 5)}), the largest "
        f"step {size(found['step'], 5)} (planned {size(found['planned_step'], 5)}), together {size(total, 5)} "
        f"(planned {size(planned, 5)}, {found['apart']:+.2%} apart)"
    )


def _weights(held: dict[str, int]) -> str:
    planned = f"{size(held['weights_planned'], 4)} planned"
    return f"{size(held['weights'], 4)} ({planned})" if held["weights"] else f"{planned}, not counted on a CPU"


def decode_table(points: Sequence[dict[str, Any]]) -> list[str]:
    head = ("sequences", "rows", "context", "routing", "step ms", "drafting", "floor ms", "share", "links ms*",
            "tokens/s GPU", "links hidden*", "links added*", "tokens/s user")  # fmt: skip
    rows = [
        (f"{p['sequences']:,}", f"{p['rows']:,}", f"{p['context']:,}", _routing(p), f"{p['ms']:.2f}",
         "" if p["drafting_ms"] is None else f"{p['drafting_ms']:.2f}", f"{p['floor_ms']:.2f}", f"{p['share']:.0%}",
         f"{p['exchange_ms']:.1f}", *_rates(p), f"{p['tokens_per_s_per_user']:.0f}")
        for p in points
    ]  # fmt: skip
    return [*aligned([head, *rows], right=range(len(head))), "* modelled"]


def prefill_table(points: Sequence[dict[str, Any]]) -> list[str]:
    head = ("tokens", "at a time", "replay", "routing", "ms", "floor ms", "share", "links ms*", "tokens/s GPU",
            "links hidden*", "links added*")  # fmt: skip
    rows = [
        (f"{p['tokens']:,}", f"{p['chunk_tokens']:,}", "none" if p["keep"] is None else "compact", _routing(p),
         f"{p['ms']:.1f}", f"{p['floor_ms']:.1f}", f"{p['share']:.0%}", f"{p['exchange_ms']:.1f}", *_rates(p))
        for p in points
    ]  # fmt: skip
    return [*aligned([head, *rows], right=range(len(head))), "* modelled"]


def op_table(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Most first; small ones together."""
    total = sum(entry["ms"] for entry in entries)
    rows = [
        (entry["op"], entry["shape"], str(entry["calls"]), f"{entry['ms']:.3f}", f"{entry['ms'] / total:.1%}")
        for entry in entries[:MOST_OPS]
    ]
    rest = sum(entry["ms"] for entry in entries[MOST_OPS:])
    last = (
        "the rest",
        "",
        str(sum(entry["calls"] for entry in entries[MOST_OPS:])),
        f"{rest:.3f}",
        f"{rest / total:.1%}",
    )
    head = ("operation", "first operand → result", "calls", "ms", "of all")
    return list(aligned([head, *rows, last], right=range(2, len(head))))


def beside_release(role: dict[str, Any]) -> Iterator[str]:
    """The best measured rate of each phase beside what the release is quoted with, scaled by FP8 peaks."""
    peak = role["peak_flops"]
    for phase, (quoted, where) in RELEASE.items():
        points = role.get(phase) or []
        if not points or not peak:
            continue
        best, scaled = comparable(points), quoted * peak / RELEASE_PEAK
        yield (
            f"{phase}: {best['tokens_per_s']:,.0f} tokens/s of this GPU without links{_user(best)}, "
            f"{best['tokens_per_s_links_added']:,.0f} with modelled links added; the release is quoted with {quoted:,} "
            f"({where}), × {peak / RELEASE_PEAK:.3f} by FP8 peaks = {scaled:,.0f}"
        )


def comparable(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest balanced point at which a user gets what the release's users do; the fastest at all where none is."""
    balanced = [point for point in points if point["routing"] == "balanced"] or points
    served = [point for point in balanced if point.get("tokens_per_s_per_user", RELEASE_USER) >= RELEASE_USER]
    return max(served or balanced, key=lambda point: float(point["tokens_per_s"]))


def headline(roles: Sequence[dict[str, Any]]) -> tuple[Figure, ...]:
    """Measured rates, without links, under the names that plans use."""
    found = []
    for phase in RELEASE:
        points = [point for role in roles for point in role.get(phase, ())]
        if points:
            best = comparable(points)
            found.append(_figure(f"{phase}_tokens_per_s_per_gpu", best["tokens_per_s"]))
            if phase == "decode":
                found.append(_figure("tokens_per_s_per_user", best["tokens_per_s_per_user"]))
    return tuple(found)


def _figure(name: str, value: float) -> Figure:
    return Figure(name=name, value=value, unit="tokens/s", label="measured")


def _user(point: dict[str, Any]) -> str:
    return f" at {point['tokens_per_s_per_user']:.0f} a user" if "tokens_per_s_per_user" in point else ""


def _routing(point: dict[str, Any]) -> str:
    return point["routing"] + (f" × {point['load']:.1f}" if point["load"] > 1 else "")


def _rates(point: dict[str, Any]) -> tuple[str, ...]:
    names = ("tokens_per_s", "tokens_per_s_links_hidden", "tokens_per_s_links_added")
    return tuple(f"{point[name]:,.0f}" for name in names)
