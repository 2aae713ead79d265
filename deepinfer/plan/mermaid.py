"""The engine graph of a plan as a Mermaid flowchart: https://mermaid.js.org/syntax/flowchart.html.

A plan whose roles are apart draws the engine once for each role, and what passes between them.
"""

import re
from collections.abc import Iterator
from textwrap import wrap

from deepinfer.plan.types import Node, Plan, RolePlan

GROUPS = {  # a frame around parts that belong together → seams
    "model": ("weights", "ops", "expert_dispatch", "model", "balancer"),
    "cache": ("cache", "prefix_index", "replay"),
    "tokens": ("sampler", "drafter", "verifier", "grammar"),
    "engine": ("scheduler", "executor", "engine"),
}
BETWEEN = ("transfer", "router")  # seams that belong to no role alone
WIDTH = 30  # characters of a line inside a box
INDENT = "  "


def mermaid(plan: Plan) -> str:
    """One box for each part, one arrow from a part to each that needs it. Dashed boxes have nothing to build."""
    roles = plan.layout.roles
    between = [node for node in plan.graph if node.seam in BETWEEN] if len(roles) > 1 else []
    lines = ["flowchart LR"]
    trivial = []
    for role in roles:
        prefix = f"{role.name}_"  # a bare name could be one of Mermaid's own words
        nodes = [node for node in plan.graph if node not in between and _on(node, role)]
        lines += [INDENT + line for line in _frame(f"side_{role.name}", _title(plan, role), _inside(nodes, prefix))]
        trivial += [_id(node.name, prefix) for node in nodes if not node.implementation]
    lines += [f"{INDENT}{line}" for line in _passing(plan, between)]
    if trivial:
        lines += [f"{INDENT}classDef trivial stroke-dasharray: 4 4", f"{INDENT}class {','.join(trivial)} trivial"]
    return "\n".join(lines)


def _on(node: Node, role: RolePlan) -> bool:
    """Whether a role has this part: all do, but each has the ops of its own chip only."""
    return node.seam != "ops" or not role.ops or node.name.removeprefix("ops.") in {op.backend for op in role.ops}


def _title(plan: Plan, role: RolePlan) -> str:
    chip = role.hardware.name
    last = role.first_rank + role.num_ranks - 1
    ranks = f"rank {last}" if role.num_ranks == 1 else f"ranks {role.first_rank} to {last}"
    name = plan.model.name if role.name == "all" else role.name
    return f"{name}: {ranks}, {role.num_ranks} × {chip}"


def _inside(nodes: list[Node], prefix: str) -> Iterator[str]:
    """Boxes in their frames, then the arrows between them."""
    known = [seam for seams in GROUPS.values() for seam in seams]
    for group, seams in (GROUPS | {"other": tuple({node.seam for node in nodes}.difference(known))}).items():
        boxes = [f'{_id(node.name, prefix)}["{_label(node)}"]' for node in nodes if node.seam in seams]
        if boxes:
            yield from _frame(f"{prefix}{group}_parts", group, iter(boxes))
    names = {node.name for node in nodes}
    for node in nodes:
        yield from (f"{_id(need, prefix)} --> {_id(node.name, prefix)}" for need in node.needs if need in names)


def _frame(name: str, title: str, inside: Iterator[str]) -> list[str]:
    return [f'subgraph {name} ["{_quoted(title)}"]', *(INDENT + line for line in inside), "end"]


def _passing(plan: Plan, between: list[Node]) -> Iterator[str]:
    """From the caches of a prompt to the ranks that write its answer."""
    sides = [role.name for role in plan.layout.roles]
    if len(sides) < 2:
        return
    start, end = (_id("cache", f"{side}_") for side in (sides[0], sides[-1]))
    model = plan.model
    passed = f"{model.growing_bytes_per_token:,} B a token<br/>{model.fixed_bytes_per_sequence:,} B a sequence"
    named = {node.seam: _id(node.name, "between_") for node in between}
    yield from (f'{_id(node.name, "between_")}["{_label(node)}"]' for node in between)
    if transfer := named.get("transfer"):
        yield f'{start} -->|"{passed}"| {transfer}'
        yield f"{transfer} --> {end}"
    else:
        yield f'{start} -->|"{passed}"| {end}'
    if router := named.get("router"):
        yield from (f"{router} --> {_id('engine', f'{side}_')}" for side in sides)


def _id(name: str, prefix: str) -> str:
    return prefix + re.sub(r"\W", "_", name)


def _label(node: Node) -> str:
    what = node.implementation.partition(":")[2] or node.reason
    what += " (planned)" if node.planned else ""
    return "<br/>".join(_quoted(line) for line in (node.name, *wrap(what, WIDTH)))


def _quoted(text: str) -> str:
    """Text between quotes: Mermaid has no escape for a quote or a hash sign but an entity."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
