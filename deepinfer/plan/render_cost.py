"""The cost section of a plan as text: one fact a line, each figure with its label."""

from collections.abc import Callable, Iterator, Sequence

from deepinfer.plan.cost.fleet_types import Sustained
from deepinfer.plan.cost.labels import labelled
from deepinfer.plan.cost.types import CostPlan, DecodeCost, DecodePoint, PrefillCost, StepTime
from deepinfer.plan.quantities import amount, duration, size
from deepinfer.plan.types import Plan

EVERY = 3  # of the points of a curve one in so many is shown; JSON has them all
CURVE = (
    "sequences × tokens/s of a rank and of a user, time of a step | the same as calibrated  what holds the last one up"
)
Row = tuple[str, str]


def cost_lines(plan: Plan) -> Iterator[Row]:
    """What the workload takes of this plan."""
    cost = plan.cost
    yield from (("", note) for note in cost.notes)
    if cost.prefill is None or cost.decode is None:
        return
    yield from _prefill(cost.prefill, cost.stand_ins.get(cost.prefill.role, ""))
    yield from _decode(cost, cost.decode, cost.stand_ins.get(cost.decode.role, ""))
    balanced, sustained = cost.figure("tokens_per_s_per_gpu"), cost.sustained
    ratio = (
        f", at {_ratio(sustained.rank_ratio)} ranks of prefill : decode" if sustained and sustained.rank_ratio else ""
    )
    yield (
        "balanced",
        f"{amount(balanced.value)} tokens/s a rank, prompts with hits and answers{ratio} ({balanced.said})",
    )
    if sustained is not None:
        yield "sustains", _sustained(plan, sustained, balanced.stand_in)
    yield from (("assumes", assumption) for assumption in cost.assumptions)


def _ways(values: Sequence[float], steps: Sequence[StepTime], write: Callable[[float], str], stand_in: str) -> str:
    """One quantity once for each way of reckoning: "120 k (roofline), 71 k (calibrated)"."""
    found = zip(values, steps, strict=True)
    return ", ".join(f"{write(value)} ({labelled(step.label, stand_in)})" for value, step in found)


def _rates(values: Sequence[float], steps: Sequence[StepTime], stand_in: str) -> str:
    return _ways(values, steps, amount, stand_in).replace(" (", " tokens/s a rank (", 1)


def _prefill(cost: PrefillCost, stand_in: str) -> Iterator[Row]:
    name, step = "prefill" if cost.role == "all" else cost.role, cost.steps[-1]
    tokens = f"{cost.computed_tokens:,.0f} of {cost.prompt_tokens:,} tokens of a prompt computed"
    sent = f"; {size(cost.transfer_bytes)} of cache go to a decode rank" if cost.transfer_bytes else ""
    yield name, f"{tokens}, {cost.step_tokens:,.0f} a step and rank{sent}"
    each = ", ".join(f"{amount(flops)}FLOP {dtype}" for dtype, flops in cost.flops.items())
    yield name, f"{amount(sum(cost.flops.values()))}FLOP a token: {each}"
    yield name, _rates(cost.tokens_per_s_per_gpu, cost.steps, stand_in)
    yield name, step_line(step, stand_in)
    yield name, f"bound by {_bound(step)}; {cost.moves}"
    yield "first token", f"{_ways(cost.ttft_s, cost.steps, duration, stand_in)}: one prompt on an idle engine"


def _decode(cost: CostPlan, decode: DecodeCost, stand_in: str) -> Iterator[Row]:
    rows = f"{decode.rows_each} row{'s' * (decode.rows_each > 1)} of each in a step"
    context = f"{decode.context_tokens:,} tokens of context on average, prompt and half an answer"
    yield "decode", f"{context}; {rows}, {decode.accepted_tokens:.3g} accepted"
    point = decode.point
    yield "decode", CURVE if len(point.steps) > 1 else CURVE.partition(" | ")[0]
    for shown in [*decode.curve[:-1:EVERY], decode.curve[-1]]:
        yield "decode", _point(shown, stand_in)
    yield "decode", step_line(point.steps[-1], stand_in)
    yield "decode", f"bound by {_bound(point.steps[-1])}; {decode.moves}"
    user = cost.figure("tokens_per_s_per_user")
    turns = f"; answers get {cost.decode_share:.1%} of a rank's time, prompts the rest" if cost.decode_share < 1 else ""
    yield "a user", f"{amount(user.value)} tokens/s ({user.said}) with {_seats(cost, decode)}{turns}"


def _seats(cost: CostPlan, decode: DecodeCost) -> str:
    """How many sequences share a step, and why not more."""
    count, most, asked = decode.point.sequences, decode.most_sequences, decode.asked_sequences
    full = f"{most:,} fill the cache, scheduler.max_num_seqs={asked} was asked" if most < asked else ""
    if decode.limit == "user":
        why = "no fewer would do" if cost.sustained is None else "workload.tokens_per_s_per_user allows no more"
        return "; ".join(filter(None, (f"{count:,} of at most {most:,} at once on a rank: {why}", full)))
    return f"{count:,} at once on a rank: {full or f'scheduler.max_num_seqs={asked}'}"


def _point(point: DecodePoint, stand_in: str) -> str:
    """One line of the curve: rates of a rank and of a user, once for each way of reckoning, and the last one's bound."""
    found = [
        f"{amount(gpu):>6}, {amount(user):>6}, {duration(step.time_s):>7} ({labelled(step.label, stand_in)})"
        for step, gpu, user in zip(point.steps, point.tokens_per_s_per_gpu, point.tokens_per_s_per_user, strict=True)
    ]
    return f"{point.sequences:>5} × {' | '.join(found)}  {_bound(point.steps[-1])}"


def step_line(step: StepTime, stand_in: str = "") -> str:
    """The time of a step as a sum: (parts or the slowest link + latency) ÷ system share. The shorter one is hidden."""
    slowest = max(step.links_s, key=step.links_s.__getitem__, default="")
    exposed = bool(slowest) and step.links_s[slowest] > step.body_s
    holder = f"{slowest} {duration(step.links_s[slowest])}" if exposed else f"parts {duration(step.body_s)}"
    total = f"{holder} + latency {duration(step.latency_s)}" if step.latency_s else holder
    if step.system_share < 1:
        total = f"({total}) ÷ {step.system_share:.1%} system share"
    hidden = [
        f"{link} {duration(seconds)}" for link, seconds in step.links_s.items() if not (exposed and link == slowest)
    ]
    hidden += [f"parts {duration(step.body_s)}"] if exposed else []
    held = [f"{dtype} {duration(seconds)}" for dtype, seconds in step.compute_s.items()]
    inside = f"of the parts {', '.join([*held, f'memory {duration(step.memory_s)}'])}"
    behind = f"; hidden {', '.join(hidden)}" if hidden else ""
    return f"{duration(step.time_s)} a step: {total} ({labelled(step.label, stand_in)}); {inside}{behind}"


def _bound(step: StepTime) -> str:
    return f"{step.bound} ({step.bound_part})" if step.bound_part else step.bound


def _sustained(plan: Plan, sustained: Sustained, stand_in: str) -> str:
    """What traffic this layout carries, which role limits it and what would balance it."""
    busy = f", {sustained.busy:.0%} busy" if sustained.busy < 1 else ""
    rate = f"{amount(sustained.requests_per_s)} requests/s on this layout{busy} ({labelled(sustained.label, stand_in)})"
    others = [f"{name} could do {amount(done)}" for name, done in sustained.by_role.items() if name != sustained.limit]
    if not others:
        return rate
    first, last = plan.layout.roles[0].num_ranks, plan.layout.roles[-1].num_ranks
    grown = [f"deploy.{name}.replicas={count} for that" for name, count in sustained.replicas.items()]
    ratio = f"ranks are {first} : {last}, {_ratio(sustained.rank_ratio)} would balance"
    return "; ".join([rate, f"{sustained.limit} limits, {', '.join(others)}", ratio, *grown])


def _ratio(decode_ranks: float) -> str:
    """Ranks of prefill : decode, the smaller side as 1."""
    return f"1 : {decode_ranks:.3g}" if decode_ranks >= 1 else f"{1 / decode_ranks:.3g} : 1"
