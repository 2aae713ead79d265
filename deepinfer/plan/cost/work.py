"""FLOPs by precision, bytes and link traffic of one rank in one step: of prompts, or of answers.

A rank computes the rows of its own requests; of the experts it computes what all rows of its group send it, which is as
much as it sends when every expert is as likely. Weights are read once a step. Neighbouring queries of a sequence read
windows and unlimited scans once together, and chosen entries each for itself as long as there are others to read.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from deepinfer.plan.cost.launches import launches
from deepinfer.plan.cost.links import Group, Route, host_route, remote_ranks, routes
from deepinfer.plan.cost.shape import Experts, KeyScan, Scope, Shape
from deepinfer.plan.cost.types import FIELDS, LinkWork, PartWork, Work


class Prompt(Struct, frozen=True, kw_only=True):
    """One prompt: its tokens, how many of them are in the cache already, and how many rows replay=compact keeps."""

    tokens: int
    cached: float = 0.0
    keep: int | None = None

    @property
    def computed(self) -> float:
        """Tokens that are computed; the last one always is, for the answer begins there."""
        return max(1.0, self.tokens - self.cached)

    @property
    def kept(self) -> float:
        """Rows that run through all layers."""
        return self.computed if self.keep is None else min(self.computed, float(self.keep))


class Load(Struct, frozen=True, kw_only=True):
    """A step as one rank sees it."""

    rows: dict[Scope, float]
    read: dict[Scope, float]  # share of the weights of a scope that the step reads: a chunk may not reach the head
    pairs: Callable[[KeyScan], float]  # (query, key) pairs in one layer
    keys: Callable[[KeyScan], float]  # keys that are read in one layer
    computes: float = 1.0  # rows that a rank's experts see, for each row of its own
    sends: float = 1.0  # rows that it sends to experts, for each of its own
    drafts: int = 0  # steps of a drafter, one after another


def prefill_work(shape: Shape, group: Group, prompt: Prompt, requests: float, *, alone: bool = False) -> Work:
    """A step of `requests` such prompts on every attention rank, or of part of one; on one of them where `alone`."""
    share = requests / group.context  # of one prompt, for one rank
    reached = min(1.0, requests)  # of the steps of a long prompt only the last goes to the end
    start, kept_from = round(prompt.tokens - prompt.computed), round(prompt.tokens - prompt.kept)
    chunk = max(1, round(prompt.computed * reached))

    def pairs(scan: KeyScan) -> float:
        if scan.scope == "row":
            return share * scan.keys_between(start, prompt.tokens)
        if prompt.keep is not None and not scan.ratio:  # windows of kept rows hold kept rows only
            return share * scan.keys_between(0, prompt.tokens - kept_from)
        return share * scan.keys_between(kept_from, prompt.tokens)

    def keys(scan: KeyScan) -> float:
        if scan.scope == "row":
            middle = prompt.tokens - round(prompt.computed * (1 - reached) / 2)
            return max(1.0, requests) * scan.distinct(chunk, middle)
        return requests * scan.distinct(max(1, round(prompt.kept)), prompt.tokens)

    kept = share * prompt.kept
    spread = group.context / max(group.context, group.expert) if alone else 1.0
    load = Load(
        rows={"row": share * prompt.computed, "kept": kept, "sampled": requests, "accepted": kept, "draft": 0.0},
        read={"row": 1.0, "kept": reached, "sampled": reached, "accepted": reached, "draft": 0.0},
        pairs=pairs,
        keys=keys,
        computes=spread,
    )
    return _work(shape, group, load, shares=group.context > 1)


def decode_work(
    shape: Shape,
    group: Group,
    sequences: float,
    context: int,
    *,
    rows_each: int = 1,
    drafts: int = 0,
    accepted: float = 1,
) -> Work:
    """A step of `sequences` on every attention rank: `rows_each` rows of each, and `drafts` slots of a drafter.

    Ranks of one context group do the same work; each sends its part of the rows to the experts.
    """
    rows: dict[Scope, float] = {
        "row": sequences * rows_each,
        "kept": sequences * rows_each,
        "sampled": sequences * rows_each,
        "draft": sequences * drafts,
        "accepted": sequences * accepted,
    }

    def queries(scan: KeyScan) -> int:
        return drafts if scan.scope == "draft" else rows_each

    load = Load(
        rows=rows,
        read={scope: 1.0 if count else 0.0 for scope, count in rows.items()},
        pairs=lambda scan: sequences * queries(scan) * scan.keys(context),
        keys=lambda scan: sequences * scan.distinct(queries(scan), context) if queries(scan) else 0.0,
        computes=1 / group.context,
        sends=1 / group.context,
        drafts=drafts,
    )
    return _work(shape, group, load, shares=False)


def expected_experts(held: float, experts: float, chosen: int, rows: float) -> float:
    """How many of `held` experts at least one of `rows` rows chooses, on average."""
    return held * (1 - (1 - chosen / experts) ** rows)


def _work(shape: Shape, group: Group, load: Load, *, shares: bool) -> Work:
    sums: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for name, dtype, flops, kind, moved in _amounts(shape, group, load):
        by_dtype, num_bytes = sums.setdefault(name, ({}, dict.fromkeys(FIELDS.values(), 0.0)))
        if flops:
            by_dtype[dtype] = by_dtype.get(dtype, 0.0) + flops
        num_bytes[FIELDS[kind]] += moved
    parts = (PartWork(part=name, flops=flops, **num_bytes) for name, (flops, num_bytes) in sums.items())
    return Work(
        parts=tuple(part for part in parts if part.flops or part.table_bytes or part.stream_bytes),
        links=tuple(_links(shape, group, load, shares=shares)),
        rows=load.rows["row"],
        layers=shape.layers,
        launches=tuple(launches(shape, load, lambda experts: _read_experts(experts, group, load))),
    )


def _amounts(shape: Shape, group: Group, load: Load) -> Iterator[tuple[str, str, float, str, float]]:
    """Part, dtype and FLOPs, kind and number of bytes: of each product, scan, group of experts and way of a row."""
    for product in shape.products:
        flops = load.rows[product.scope] * product.flops
        held = product.weights * product.weight_bytes * load.read[product.scope]
        yield product.part, product.dtype, flops, "weights", held
    for scan in shape.scans:
        if load.rows[scan.scope]:
            flops = load.pairs(scan) * scan.flops * scan.layers
            yield scan.part, scan.dtype, flops, "cache", load.keys(scan) * scan.key_bytes * scan.layers
    for experts in shape.experts:
        rows = load.rows[experts.scope] * load.computes
        flops = 2.0 * rows * experts.chosen * experts.weights * experts.layers
        read = _read_experts(experts, group, load)
        yield experts.part, experts.dtype, flops, "weights", read * experts.num_bytes * experts.layers
    kinds = {"gather": "tables", "write": "cache", "stream": "streams"}
    if group.engram == "replicated":
        kinds["engram"] = "tables"
    for traffic in shape.traffic:
        if traffic.kind in kinds:  # the others go over links
            yield traffic.part, "", 0.0, kinds[traffic.kind], load.rows[traffic.scope] * traffic.num_bytes


def _read_experts(experts: Experts, group: Group, load: Load) -> float:
    """Experts of one rank whose weights a step reads in a layer, on average over steps with rows and steps without."""
    read = load.read[experts.scope]
    rows = load.rows[experts.scope] * load.computes
    return _touched(experts, group, rows / read * group.expert) * read if read else 0.0


def _slots(experts: Experts, group: Group) -> int:
    """Experts and their copies; a drafter's are not copied."""
    return experts.experts + (0 if experts.scope == "draft" else group.redundant_experts)


def _touched(experts: Experts, group: Group, group_rows: float) -> float:
    """Experts of one rank whose weights a step of `group_rows` rows reads in a layer."""
    slots = _slots(experts, group)
    return expected_experts(slots / group.expert, slots, experts.chosen, group_rows)


def _links(shape: Shape, group: Group, load: Load, *, shares: bool) -> Iterator[LinkWork]:
    for experts in shape.experts:
        sent = load.rows[experts.scope] * load.sends * experts.layers
        sent *= remote_ranks(_slots(experts, group), experts.chosen, group.expert)
        for route in routes(group.chip, group.expert):
            yield _link(route, "dispatch", sent * experts.dispatch_bytes, experts.layers)
            yield _link(route, "combine", sent * experts.combine_bytes, experts.layers)
    for traffic in shape.traffic:
        moved = load.rows[traffic.scope] * traffic.num_bytes
        if traffic.kind == "share" and shares:
            for route in routes(group.chip, group.context):
                yield _link(route, "context", moved * (group.context - 1), shape.layers)
        elif traffic.kind == "engram" and group.engram == "host":
            yield _link(host_route(group.chip), "engram", moved, 1)
        elif traffic.kind == "engram" and group.engram == "sharded":
            away = moved * (group.num_ranks - 1) / group.num_ranks
            for route in routes(group.chip, group.num_ranks):
                yield _link(route, "engram", away, 1)


def _link(route: Route, what: str, num_bytes: float, calls: int) -> LinkWork:
    return LinkWork(
        link=route.link,
        what=what,  # type: ignore[arg-type]
        num_bytes=num_bytes * route.share,
        bytes_per_s=route.bytes_per_s,
        calls=calls,
    )
