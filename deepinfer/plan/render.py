"""A plan as text: one screen, one fact a line, each line beginning with its section for grep. And as JSON."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

import msgspec

from deepinfer.config.specs import Spec
from deepinfer.plan.render_cost import cost_lines, fleet_lines
from deepinfer.plan.render_roles import backends, layout_lines, need_lines, op_lines, ranks_on_chips
from deepinfer.plan.types import MemoryItem, Plan, RankMemory

GIB = 2**30
SECTION = 9  # columns of the first field
LABEL = 15  # columns of the second
WRAP = 96  # columns of a list that may be long
SMALL_BYTES = 10e9  # a rank that holds less is written in MB
SHOWN = 8  # differing values that the text lists
SUMMED = {"cache": "kv_pool", "state": "state", "workspace": "workspace"}  # word of the summary → line of the budget


def text(plan: Plan, typed: Sequence[str] = ()) -> str:
    """The whole plan for people; `typed` are the overrides that led to it. Equal arguments give equal text."""
    lines = [
        *_section("plan", _head(plan, typed)),
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
    return "\n".join(lines)


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
    sizes = ", ".join(f"{label} {_size(memory.item(name).num_bytes)}" for label, name in SUMMED.items())
    capacity = plan.capacity
    most = f"{capacity.sequences} sequences of up to {model.max_model_len:,} tokens"
    names = [difference.rpartition(" in ")[2] for difference in model.differences[:1]]
    warning = [
        f"warning its config.json differs from {name} in {_counted(len(model.differences), 'value')}" for name in names
    ]
    return "\n".join(
        (
            f"plan    {model.name} on {ranks_on_chips(plan)}: {how}",
            f"memory  {_size(memory.device_bytes)} a rank: weights {_size(weights)}, {sizes} (estimate)",
            f"takes   {capacity.tokens:,} tokens of cache, {most}; digest {plan.numerics_digest}",
            *warning,
        )
    )


def _section(name: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for label, value in rows:
        yield f"{name:<{SECTION}}{label:<{LABEL}}{value}".rstrip() if label else f"{name:<{SECTION}}{value}"


def _head(plan: Plan, typed: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "", f"{plan.model.name} on {ranks_on_chips(plan)} (deepinfer {plan.deepinfer})"
    order = {group: index for index, group in enumerate(Spec.__struct_fields__)}
    chosen = sorted(plan.choices.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
    for line in wrap(" ".join(f"{group}={option}" for group, option in chosen), WRAP, break_on_hyphens=False):
        yield "chosen", line
    keys = [override for override in typed if "." in override.partition("=")[0].partition("@")[0]]
    for line in wrap(" ".join(keys), WRAP, break_on_hyphens=False, break_long_words=False):
        yield "set", line


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
        yield "differs", f"… and {_counted(len(model.differences) - SHOWN, 'value')} more; format=json lists all"


def _threads(plan: Plan) -> str:
    on_cpu = any(role.hardware.kind == "cpu" for role in plan.layout.roles)
    return f", {_counted(plan.numerics.threads, 'thread')}" if on_cpu else ""


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
        yield "used", f"{_column(memory.device_bytes, small)}  of {_amount(hardware.usable_bytes, small)} usable"
        total = (
            f"{'a rank' if hardware.kind == 'cpu' else 'a device'} has {_amount(hardware.memory_bytes, small)} ({seen})"
        )
        yield "headroom", f"{_column(memory.headroom_bytes, small)}  {total}"
        if memory.host_bytes:
            yield "host", f"{_column(memory.host_bytes, small)}  of the host's memory for each rank"


def _memory_line(item: MemoryItem, whole_bytes: int | None, small: bool) -> str:
    amount = f"{'-':>12}" if item.place == "nowhere" else _column(item.num_bytes, small)
    checkpoint = f"of {whole_bytes:,} B in the checkpoint" if whole_bytes is not None else ""
    return f"{amount}  {'; '.join(filter(None, (checkpoint, item.note)))}".rstrip()


def _column(num_bytes: int, small: bool) -> str:
    return f"{_amount(num_bytes, small):>12}"


def _amount(num_bytes: int, small: bool) -> str:
    return f"{num_bytes / 1e6:.3f} MB" if small else f"{num_bytes / 1e9:.3f} GB"


def _cache(plan: Plan) -> Iterator[tuple[str, str]]:
    capacity = plan.capacity
    yield "blocks", f"{capacity.num_blocks:,} of {plan.cache.block_tokens} tokens"
    yield "tokens", f"{capacity.tokens:,} a rank, {capacity.all_tokens:,} in all"
    longest = f"{capacity.sequences_at_max_len:,} of {plan.model.max_model_len:,} tokens at once"
    yield "sequences", f"{capacity.sequences:,} a rank, {capacity.all_sequences:,} in all; {longest}"


def _graph(plan: Plan) -> Iterator[tuple[str, str]]:
    for node in plan.graph:
        needs = f" ← {' '.join(node.needs)}" if node.needs else ""
        planned = " (planned)" if node.planned else ""
        yield node.name, f"{node.implementation or 'nothing to build'}{planned}{needs}"


def _decided(plan: Plan) -> Iterator[tuple[str, str]]:
    for decision in plan.decisions:
        second = f"; second: {decision.runner_up}" if decision.runner_up else ""
        cost = f" ({decision.estimate})" if decision.estimate else ""
        yield "", f"{decision.key}={decision.value}: {decision.rule}{second}{cost}"


def _weights_end(memory: RankMemory) -> int:
    return next(index for index, item in enumerate(memory.items) if item.name == "kv_pool")


def _size(num_bytes: int) -> str:
    """Bytes in words: "14.4 MB", "2.15 GB", "144 GB", "2.99 TB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.3g} {unit}"
    return f"{num_bytes} B"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
