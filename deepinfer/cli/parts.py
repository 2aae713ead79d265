"""What a plan has that no key of the configuration sets by itself: ops, memory, graph, capacity, cost, decisions."""

import msgspec

from deepinfer.config.misnamed import options_of
from deepinfer.config.neighbours import other_options
from deepinfer.plan.changes import shown
from deepinfer.plan.compare import bound_of
from deepinfer.plan.cost.types import Figure
from deepinfer.plan.ledger import OF
from deepinfer.plan.quantities import duration, quantity
from deepinfer.plan.types import Node, Plan


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `lever` is the key or group behind it, `others` what that could be instead."""

    key: str
    value: str
    because: str = ""
    second: str = ""
    needs: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    lever: str = ""
    others: tuple[object, ...] = ()


def parts_of(plan: Plan) -> dict[str, Part]:
    """Dotted name, section first → part."""
    parts = [*_ops(plan), *_memory(plan), *_graph(plan), *_capacity(plan), *_cost(plan), *_decisions(plan)]
    found: dict[str, Part] = {}
    for part in parts:
        found.setdefault(part.key, part)
    return found


def _ops(plan: Plan) -> list[Part]:
    apart = len({role.ops for role in plan.layout.roles}) > 1
    sides = {f"{role.name}.": role.ops for role in plan.layout.roles} if apart else {"": plan.ops}
    return [
        Part(
            key=f"ops.{side}{choice.op}",
            value=choice.backend,
            because=choice.reason,
            second=choice.runner_up,
            lever="kernels.ops",
            others=tuple({choice.op: name} for name in ("reference",) if name != choice.backend),
        )
        for side, ops in sides.items()
        for choice in ops
    ]


def _memory(plan: Plan) -> list[Part]:
    return [
        Part(
            key=f"memory.{'' if memory.role == 'all' else f'{memory.role}.'}{item.name}",
            value=f"{item.num_bytes:,} B a rank",
            because=item.note or ("as the ops hold it" if item.num_bytes else ""),
        )
        for memory in plan.memory
        for item in memory.items
    ]


def _graph(plan: Plan) -> list[Part]:
    return [
        Part(
            key=f"graph.{node.name}",
            value=node.implementation or "nothing to build",
            because=node.reason + (" (planned, no code in this version)" if node.planned else ""),
            second=node.runner_up,
            needs=node.needs,
            needed_by=tuple(other.name for other in plan.graph if node.name in other.needs),
            lever=node.option.partition("=")[0],
            others=_other_options(node, plan),
        )
        for node in plan.graph
    ]


def _other_options(node: Node, plan: Plan) -> tuple[str, ...]:
    group = node.option.partition("=")[0]
    return tuple(other_options(plan.choices[group], options_of(group))) if group in plan.choices else ()


def _capacity(plan: Plan) -> list[Part]:
    rank = "what fits into the caches of one attention rank"
    return [
        Part(
            key=f"capacity.{name}",
            value=f"{getattr(plan.capacity, name):,}",
            because="all attention ranks together" if name.startswith("all_") else rank,
        )
        for name in plan.capacity.__struct_fields__
    ]


def _model(figure: Figure) -> str:
    """ "by the calibrated model", and whose shares it took where the chip has none of its own."""
    whose = f", with the shares of {figure.stand_in}" if figure.stand_in and figure.label != "roofline" else ""
    return f"by the {figure.label} model{whose}"


def _cost(plan: Plan) -> list[Part]:
    terms = _terms(plan)
    figures = [
        Part(
            key=f"cost.{figure.name}",
            value=shown(figure.value, figure.unit),
            because="; ".join(filter(None, (terms.get(figure.name), _model(figure)))),
        )
        for figure in plan.cost.headline
    ]
    bounds = [
        Part(key=f"cost.{step}", value=f"bound by {bound_of(cost)}", because=f"faster with {cost.moves}")
        for step, cost in (("prefill", plan.cost.prefill), ("decode", plan.cost.decode))
        if cost is not None
    ]
    return [*figures, *bounds]


def _terms(plan: Plan) -> dict[str, str]:
    """Headline figure → what it is made from; a term after the other, so that it can be reckoned again."""
    prefill, decode = plan.cost.prefill, plan.cost.decode
    if prefill is None or decode is None:
        return {}
    first, last = (plan.layout.roles[index].context for index in (0, -1))
    point, share = decode.point, plan.cost.decode_share
    step = duration(point.steps[-1].time_s, 4)
    accepted = f"{quantity(decode.accepted_tokens)} accepted {'tokens' if decode.accepted_tokens > 1 else 'token'}"
    shared = f" ÷ {last} context ranks" if last > 1 else ""
    rate = {figure.name: quantity(figure.value) for figure in plan.cost.headline}
    computed, whole = quantity(prefill.computed_tokens), f"{prefill.prompt_tokens:,}"
    turns = f" × {share:.3g} of the time, the rest is for prompts" if share < 1 else ""
    return {
        "prefill_tokens_per_s_per_gpu": (
            f"{quantity(prefill.step_tokens)} computed tokens ÷ {duration(prefill.steps[-1].time_s, 4)} of a step"
            + (f" ÷ {first} context ranks" if first > 1 else "")
        ),
        "prompt_tokens_per_s_per_gpu": (
            f"{rate['prefill_tokens_per_s_per_gpu']} computed tokens/s × {whole} tokens of a prompt ÷ {computed} of them "
            "that are computed"
        ),
        "decode_tokens_per_s_per_gpu": f"{point.sequences:,} sequences × {accepted} ÷ {step} of a step{shared}",
        "tokens_per_s_per_user": f"{accepted} ÷ {step} of a step that {point.sequences:,} sequences share{turns}",
        "tokens_per_s_per_gpu": (
            f"prompt and answer tokens of a request ÷ the time that both take of a rank, at "
            f"{rate['prefill_tokens_per_s_per_gpu']} computed and {rate['decode_tokens_per_s_per_gpu']} answer tokens/s"
        ),
        "ttft_s": f"{computed} of {whole} tokens of one prompt computed on an idle engine, no queue",
    }


def _decisions(plan: Plan) -> list[Part]:
    return [
        Part(key=decision.key, value=decision.value, because=decision.rule, second=decision.runner_up)
        for decision in plan.decisions
        if OF not in decision.key
    ]
