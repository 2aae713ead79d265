"""A plan as text: one screen, one fact a line, each line beginning with its section for grep. And as JSON."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import wrap

import msgspec

from deepinfer.config.specs import Spec
from deepinfer.plan.ledger import OF
from deepinfer.plan.quantities import counted, fixed_size, size
from deepinfer.plan.render_cost import cost_lines
from deepinfer.plan.render_fleet import fleet_lines
from deepinfer.plan.render_roles import backends, layout_lines, need_lines, op_lines, ranks_on_chips
from deepinfer.plan.types import Decision, MemoryItem, Plan, RankMemory
from deepinfer.plan.verdict import verdict

GIB = 2**30
SECTION = 9  # columns of the first field
LABEL = 15  # columns of the second
AMOUNT = 13  # columns of a size
WRAP = 96  # columns of a list that may be long
SMALL_BYTES = 10e9  # a rank that holds less is written in MB
SHOWN = 8  # differing values that the text lists
SUMMED = {"cache": "kv_pool", "state": "state", "workspace": "workspace"}  # word of the summary → line of the budget


def text(plan: Plan, typed: Sequence[str] = ()) -> str:
    """The whole plan for people; `typed` are the overrides that led to it. Equal arguments give equal text."""
    lines = []
    for section, label, value in rows(plan, typed):
        lines.append(
            f"{section:<{SECTION}}{label:<{LABEL}}{value}".rstrip() if label else f"{section:<{SECTION}}{value}"
        )
    return "\n".join(lines)


def rows(plan: Plan, typed: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """The text's facts: section, label (which may be empty) and what is said."""
    return [
        *_section("plan", _head(plan, typed)),
        *_section("plan", verdict(plan)),
        *_section("model", _model(plan)),
        *_section("layout", layout_lines(plan)),
        *_section("memory", _memory(plan)),
        *_section("cache", _cache(plan)),
        *_section("cost", cost_lines(plan)),
        *_section("fleet", fleet_lines(plan)),
        *_section("ops", op_lines(plan)),
        *_section("graph", _graph(plan)),
        *_section("needs", need_lines(plan)),
        *_section("decided", _decided(plan)),
        *_section("note", (("", note) for note in plan.notes)),
        *_section("warning", (("", warning) for warning in plan.warnings)),
        *_section("digest", (("ranks", plan.rank_digest), ("numerics", plan.numerics_digest))),
    ]


def json_text(plan: Plan) -> str:
    """The whole plan as indented JSON; every byte and token count is a plain integer."""
    return msgspec.json.format(plan.to_json(), indent=2).decode()


def summary(plan: Plan) -> str:
    """Three lines for the beginning of a run: what runs where and how, what it holds, what it can take.

    A fourth warns where the checkpoint is not the model that it was called.
    """
    model, numerics, memory = plan.model, plan.numerics, plan.memory[-1]
    weights = sum(item.num_bytes for item in memory.items[: _weights_end(memory)])
    how = f"{numerics.dtype}, numerics {numerics.numerics}, ops {backends(plan.layout.roles)}{_threads(plan)}"
    sizes = ", ".join(f"{label} {size(memory.item(name).num_bytes)}" for label, name in SUMMED.items())
    capacity = plan.capacity
    most = f"{capacity.sequences} sequences of up to {model.max_model_len:,} tokens"
    names = [difference.rpartition(" in ")[2] for difference in model.differences[:1]]
    warning = [
        f"warning its config.json differs from {name} in {counted(len(model.differences), 'value')}" for name in names
    ]
    return "\n".join(
        (
            f"plan    {model.name} on {ranks_on_chips(plan)}: {how}",
            f"memory  {size(memory.device_bytes)} a rank: weights {size(weights)}, {sizes} (estimate)",
            f"takes   {capacity.tokens:,} tokens of cache, {most}; digest {plan.numerics_digest}",
            *warning,
        )
    )


def _section(name: str, facts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    return ((name, label, value) for label, value in facts)


def _head(plan: Plan, typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "", f"{plan.model.name} on {ranks_on_chips(plan)} (deepinfer {plan.deepinfer})"
    order = {group: index for index, group in enumerate(Spec.__struct_fields__)}
    read = {group: option for group, option in plan.choices.items() if _is_read(group, plan)}
    chosen = sorted(read.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
    for line in wrap(" ".join(f"{group}={option}" for group, option in chosen), WRAP, break_on_hyphens=False):
        yield "chosen", line
    keys = [override for override in typed if "." in override.partition("=")[0].partition("@")[0]]
    for line in wrap(" ".join(keys), WRAP, break_on_hyphens=False, break_long_words=False):
        yield "set", line


def _is_read(group: str, plan: Plan) -> bool:
    """Whether some rank goes by this choice: sides of a deployment have choices of their own, "same" aside."""
    own = [plan.choices.get(f"{group}@deploy.{role.name}.{group}", "same") for role in plan.layout.roles]
    return "same" in own


def _model(plan: Plan) -> Iterator[tuple[str, str]]:
    model, config = plan.model, plan.model.config
    roles = [config.role(layer) for layer in range(config.num_hidden_layers)]
    kinds = ", ".join(f"{roles.count(role)} {role}" for role in ("swa", "full", "reindex", "reuse") if role in roles)
    yield "weights", f"{model.source}: {model.location}"
    yield "layers", f"{config.num_hidden_layers} ({kinds}), {config.num_nextn_predict_layers} draft"
    experts = f"{config.n_routed_experts} experts, {config.num_experts_per_tok} a token"
    yield "width", f"hidden {config.hidden_size}, {config.num_attention_heads} heads of {config.head_dim}, {experts}"
    total = f"{model.checkpoint_bytes:,} B ({model.checkpoint_bytes / GIB:.2f} GiB)"
    yield "checkpoint", f"{total} in {model.num_tensors:,} tensors"
    block = f"{model.padded_block_bytes:,} B a block of {plan.cache.block_tokens}"
    yield "growing cache", f"{model.growing_bytes_per_token:,} B a token, {block}"
    yield "fixed state", _state(plan)
    yield "longest", f"{model.max_model_len:,} tokens of {config.max_position_embeddings:,}"
    numerics = plan.numerics
    yield (
        "numerics",
        f"{numerics.numerics}, {numerics.dtype}{_threads(plan)}",
    )
    for difference in model.differences[:SHOWN]:
        yield "differs", difference
    if len(model.differences) > SHOWN:
        yield "differs", f"… and {counted(len(model.differences) - SHOWN, 'value')} more; format=json lists all"


def _threads(plan: Plan) -> str:
    on_cpu = any(role.hardware.kind == "cpu" for role in plan.layout.roles)
    return f", {counted(plan.numerics.threads, 'thread')}" if on_cpu else ""


def _state(plan: Plan) -> str:
    model, drafting = plan.model, plan.drafting
    here = f"{model.fixed_bytes_per_sequence:,} B a sequence"
    if drafting.depth:
        return f"{here} at depth {drafting.depth}, backtrack {drafting.backtrack}"
    if not model.drafting_depth:
        return here
    depth = model.drafting_depth
    return f"{here}; {model.drafting_fixed_bytes_per_sequence:,} B with drafts at depth {depth}, backtrack {depth + 1}"


def _memory(plan: Plan) -> Iterator[tuple[str, str]]:
    whole = {item.name: item.num_bytes for item in plan.model.classes}
    for memory in plan.memory:
        hardware = plan.layout.role(memory.role).hardware
        seen = "measured" if hardware.measured else "data sheet"
        small = max(memory.device_bytes, memory.host_bytes) < SMALL_BYTES
        yield "ranks", f"{memory.ranks}{'' if memory.role == 'all' else f' ({memory.role})'}"
        for item in memory.items:
            yield item.name, _memory_line(item, whole.get(item.name), small)
        yield (
            "used",
            f"{_column(memory.device_bytes, small)}  of {fixed_size(hardware.usable_bytes, in_mb=small)} usable",
        )
        whose = "a rank" if hardware.kind == "cpu" else "a device"
        total = f"{whose} has {fixed_size(hardware.memory_bytes, in_mb=small)} ({seen})"
        filled = "the cache took all that was left; " * (0 <= memory.headroom_bytes < plan.model.padded_block_bytes)
        yield "headroom", f"{_column(memory.headroom_bytes, small)}  {filled}{total}"
        if memory.host_bytes:
            yield "host", f"{_column(memory.host_bytes, small)}  of the host's memory for each rank"


def _memory_line(item: MemoryItem, whole_bytes: int | None, small: bool) -> str:
    amount = f"{'-':>{AMOUNT}}" if item.place == "nowhere" else _column(item.num_bytes, small)
    checkpoint = f"of {whole_bytes:,} B in the checkpoint" if whole_bytes is not None else ""
    return f"{amount}  {'; '.join(filter(None, (checkpoint, item.note)))}".rstrip()


def _column(num_bytes: int, small: bool) -> str:
    return f"{fixed_size(num_bytes, in_mb=small):>{AMOUNT}}"


def _cache(plan: Plan) -> Iterator[tuple[str, str]]:
    capacity = plan.capacity
    yield "blocks", f"{capacity.num_blocks:,} of {plan.cache.block_tokens} tokens"
    yield "tokens", f"{capacity.tokens:,} a rank, {capacity.all_tokens:,} in all"
    longest = f"{capacity.sequences_at_max_len:,} of {plan.model.max_model_len:,} tokens at once on a rank"
    yield "sequences", f"{capacity.sequences:,} a rank, {capacity.all_sequences:,} in all; {longest}"


def _graph(plan: Plan) -> Iterator[tuple[str, str]]:
    for node in plan.graph:
        needs = f" ← {' '.join(node.needs)}" if node.needs else ""
        planned = " (planned)" if node.planned else ""
        yield node.name, f"{node.implementation or 'nothing to build'}{planned}{needs}"


def _decided(plan: Plan) -> Iterator[tuple[str, str]]:
    alike = groupby(plan.decisions, key=lambda each: (each.key.partition(OF)[0], each.rule, each.runner_up))
    for (key, rule, runner_up), group in alike:  # a rule that settled a key for several roles is told once
        found = list(group)
        roles = [decision.key.partition(OF)[2] for decision in found]
        values = ", ".join(f"{role} {said(one)}".strip() for role, one in zip(roles, found, strict=True))
        second = f"; second: {runner_up}" if runner_up else ""
        cost = f" ({found[0].estimate})" if found[0].estimate else ""
        yield "", f"{key}={values}: {rule}{second}{cost}"


def said(decision: Decision) -> str:
    """What was decided, with a size in words; the plan itself has the bytes."""
    sized = decision.value.isdecimal() and decision.key.partition(OF)[0].endswith("_bytes")
    if sized:
        return size(int(decision.value), 4)
    return f"{int(decision.value):,}" if decision.value.isdecimal() else decision.value


def _weights_end(memory: RankMemory) -> int:
    return next(index for index, item in enumerate(memory.items) if item.name == "kv_pool")
