"""The cost and fleet sections of a plan as text: one fact a line, each figure with its label."""

from collections.abc import Callable, Iterator, Sequence

from deepinfer.plan.cost.types import CostPlan, DecodeCost, DecodePoint, FleetPlan, Need, PrefillCost, StepTime
from deepinfer.plan.types import Plan

SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SMALL_S = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
EVERY = 2  # of the points of a curve one in so many is shown; JSON has them all
Row = tuple[str, str]


def cost_lines(plan: Plan) -> Iterator[Row]:
    """What the workload takes of this plan."""
    cost = plan.cost
    yield from (("", note) for note in cost.notes)
    if cost.prefill is None or cost.decode is None:
        return
    yield from _prefill(cost.prefill)
    yield from _decode(cost, cost.decode)
    balanced = cost.figure("tokens_per_s_per_gpu")
    yield "balanced", f"{amount(balanced.value)} tokens/s a rank, prompts with hits and answers ({balanced.label})"
    yield from (("assumes", assumption) for assumption in cost.assumptions)


def fleet_lines(plan: Plan) -> Iterator[Row]:
    """How many ranks the workload's traffic needs; nothing where it names none."""
    if plan.cost.fleet is not None:
        yield from _fleet(plan.cost.fleet)


def amount(number: float) -> str:
    """A number of three digits: "86.4 k", "1.79 G", "0.5"."""
    for scale, prefix in SCALES:
        if abs(number) >= 0.9995 * scale:
            return f"{_digits(number / scale)} {prefix}"
    return _digits(number)


def duration(seconds: float) -> str:
    """A time of three digits: "1.25 s", "38.1 ms", "4.2 µs"."""
    scale, unit = next((entry for entry in SMALL_S if seconds >= 0.9995 * entry[0]), SMALL_S[-1])
    return f"{_digits(seconds / scale)} {unit}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if abs(number) >= 99.95 else f"{number:.3g}"


def _labelled(values: Sequence[float], steps: Sequence[StepTime], write: Callable[[float], str], unit: str = "") -> str:
    """One quantity once for each way of reckoning: "120 k tokens/s (roofline), 71 k (calibrated)"."""
    found = [f"{write(value)} ({step.label})" for value, step in zip(values, steps, strict=True)]
    return ", ".join([found[0].replace(" (", f"{unit} (", 1), *found[1:]])


def _prefill(cost: PrefillCost) -> Iterator[Row]:
    name = "prefill" if cost.role == "all" else cost.role
    tokens = f"{cost.computed_tokens:,.0f} of {cost.prompt_tokens:,} tokens of a prompt computed"
    sent = f"; {amount(cost.transfer_bytes)}B of cache go to a decode rank" if cost.transfer_bytes else ""
    yield name, f"{tokens}, {cost.step_tokens:,.0f} a step and rank{sent}"
    each = ", ".join(f"{amount(flops)}FLOP {dtype}" for dtype, flops in cost.flops.items())
    yield name, f"{amount(sum(cost.flops.values()))}FLOP a token: {each}"
    yield name, _labelled(cost.tokens_per_s_per_gpu, cost.steps, amount, " tokens/s a rank")
    yield name, _step(cost.steps[-1])
    yield name, f"bound by {_bound(cost.steps[-1])}; {cost.moves}"
    yield "first token", f"{_labelled(cost.ttft_s, cost.steps, duration)}: one prompt on an idle engine"


def _decode(cost: CostPlan, decode: DecodeCost) -> Iterator[Row]:
    rows = f"{decode.rows_each} row{'s' * (decode.rows_each > 1)} of each in a step"
    context = f"{decode.context_tokens:,} tokens of context on average, prompt and half an answer"
    yield "decode", f"{context}; {rows}, {decode.accepted_tokens:.3g} accepted"
    shown = [*decode.curve[:-1:EVERY], decode.curve[-1]]
    for point in shown:
        yield "decode", _point(point)
    point = decode.point
    most = f"{point.sequences:,} of at most {decode.most_sequences:,} sequences"
    yield "decode", f"runs {most}: {_step(point.steps[-1])}"
    yield "decode", f"bound by {_bound(point.steps[-1])}; {decode.moves}"
    user = cost.figure("tokens_per_s_per_user")
    turns = f", in {cost.decode_share:.0%} of the time beside prompts" if cost.decode_share < 1 else ""
    yield "a user", f"{amount(user.value)} tokens/s{turns} ({user.label})"


def _point(point: DecodePoint) -> str:
    """One line of the curve: rates of a rank and of a user, once for each way of reckoning, and the last one's bound."""
    found = [
        f"{amount(gpu):>6} a rank, {amount(user):>6} a user, {duration(step.time_s):>7} ({step.label})"
        for step, gpu, user in zip(point.steps, point.tokens_per_s_per_gpu, point.tokens_per_s_per_user, strict=True)
    ]
    return f"{point.sequences:>5} × {' | '.join(found)}  {_bound(point.steps[-1])}"


def _step(step: StepTime) -> str:
    """The time of a step, of what it consists, and its longest parts."""
    held = [f"{dtype} {duration(seconds)}" for dtype, seconds in step.compute_s.items()]
    held.append(f"memory {duration(step.memory_s)}")
    held += [f"{name} {duration(seconds)}" for name, seconds in step.links_s.items()]
    held += [f"latency {duration(step.latency_s)}"] if step.latency_s else []
    return f"{duration(step.time_s)} a step: {', '.join(held)} ({step.label})"


def _bound(step: StepTime) -> str:
    return f"{step.bound} ({step.bound_part})" if step.bound_part else step.bound


def _fleet(fleet: FleetPlan) -> Iterator[Row]:
    total = fleet.prompt_tokens_per_s + fleet.answer_tokens_per_s
    yield "traffic", f"{amount(fleet.requests_per_s)} requests/s, {amount(total)} tokens/s at the peak"
    computed = f"{amount(fleet.computed_tokens_per_s)} of them not in the cache"
    yield "traffic", f"{amount(fleet.prompt_tokens_per_s)} prompt tokens/s, {computed}"
    yield "traffic", f"{amount(fleet.answer_tokens_per_s)} answer tokens/s, {fleet.output_share:.2%} of all"
    for need in fleet.needs:
        yield need.role, _need(need, fleet)
    each = f"{amount(fleet.tokens_per_s_per_gpu)} tokens/s each ({fleet.label})"
    yield "ranks", f"{fleet.ranks:,} on {_counted(fleet.nodes, 'node')}, {each}"
    for line in fleet.sensitivity:
        work = ", ".join(f"{role} {ranks:,.1f}" for role, ranks in line.ranks_exact.items())
        found = f"{work} ranks' work; {_counted(line.ranks, 'rank')} ({fleet.label})"
        yield "if", f"workload.{line.key}={line.value:g}: {found}"
    yield from (("free", name) for name in fleet.free)


def _need(need: Need, fleet: FleetPlan) -> str:
    rate = f"{amount(need.tokens_per_s)} tokens/s at {amount(need.tokens_per_s_per_gpu)} a rank"
    counts = ((need.replicas, "replica"), (need.ranks, "rank"), (need.nodes, "node"))
    found = ", ".join(_counted(count, noun) for count, noun in counts)
    return f"{rate}: {need.ranks_exact:,.1f} ranks' work; {found}, {need.utilisation:.0%} busy ({fleet.label})"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
