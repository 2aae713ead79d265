"""The engine graph of a plan as a Mermaid flowchart."""

import re

from deepinfer.plan.types import Node, Plan


def mermaid(plan: Plan) -> str:
    """One box for each node, one arrow from a node to each that needs it. Dashed boxes have nothing to build."""
    lines = ["flowchart LR", f"  %% {plan.model.name} on {plan.layout.num_ranks} × {plan.hardware.name}"]
    for node in plan.graph:
        lines.append(f'  {_id(node.name)}["{_label(node)}"]')
    for node in plan.graph:
        lines += [f"  {_id(need)} --> {_id(node.name)}" for need in node.needs]
    trivial = [_id(node.name) for node in plan.graph if not node.implementation]
    if trivial:
        lines += ["  classDef trivial stroke-dasharray: 4 4", f"  class {','.join(trivial)} trivial"]
    return "\n".join(lines)


def _id(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _label(node: Node) -> str:
    what = node.implementation.partition(":")[2] or node.reason
    what += " (planned)" if node.planned else ""
    return f"{node.name}<br/>{what}".replace('"', "'")
