"""What would make a step faster, in words, from what holds it up."""

from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.types import Kind, StepTime


def moves_of(kind: Kind, step: StepTime, group: Group, *, compacts: bool = True, drafts: bool = False) -> str:
    """One clause: which key or which fact of the chip moves the bound of this step."""
    if step.bound == "memory":
        return _memory(kind, step, group)
    if step.bound.startswith("link"):
        return _link(step, group)
    if step.bound == "latency":
        return "more rows in a step: what is paid once a layer is shared by all of them"
    dtype = step.bound.partition(" ")[2]
    chip = f"a chip with a higher {dtype} peak"
    if kind == "decode":
        return f"{chip}, or fewer rows that are rejected (a shorter speculation.depth)" if drafts else chip
    return chip if compacts else f"replay=compact, or {chip}"


def _memory(kind: Kind, step: StepTime, group: Group) -> str:
    rows = "scheduler.max_num_seqs" if kind == "decode" else "scheduler.max_num_batched_tokens"
    if step.bound_part in ("experts", "draft_experts"):
        return f"more rows for each expert that is read ({rows}), or a parallel.expert above {group.expert}"
    if step.bound_part in ("attention", "index"):
        return "more memory bandwidth, for every sequence reads keys of its own"
    return f"more rows for weights that are read once ({rows}), or more memory bandwidth"


def _link(step: StepTime, group: Group) -> str:
    name = step.bound.partition(" ")[2]
    if name == "host":
        return "parallel.engram=sharded, which takes the n-gram rows from other ranks' memory"
    link = group.chip.links.get(name)
    near = (
        max((other.devices for other in group.chip.links.values() if other.value > link.value), default=0)
        if link
        else 0
    )
    if near > 1:
        return f"parallel.expert={near} or less, which stays on a faster link"
    return f"a faster {name}, or a parallel.expert below {group.expert}"
