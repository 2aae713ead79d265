"""The engine graph as Mermaid: every part and arrow, each role by itself, in syntax that Mermaid reads."""

import re
from collections.abc import Callable

import pytest
from msgspec import structs

from deepinfer.plan.mermaid import WIDTH, mermaid
from deepinfer.plan.types import Node, Plan

PlanOf = Callable[..., Plan]
EVERYTHING = (
    "hardware=gb300",
    "parallel=ep64",
    "speculation=dspark",
    "replay=compact",
    "cache=prefix",
    "grammar=llguidance",
)
APART = (
    "hardware=b200",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep8",
)
ID = r"[A-Za-z]\w*"
TEXT = r'"[^"\n]*"'
BOX = re.compile(rf"({ID})\[({TEXT})\]")
FRAME = re.compile(rf"subgraph ({ID}) \[({TEXT})\]")
ARROW = re.compile(rf"({ID}) -->(?:\|({TEXT})\|)? ({ID})")
CLASS = re.compile(rf"class ({ID}(?:,{ID})*) ({ID})")
CLASS_DEF = re.compile(rf"classDef ({ID}) \S.*")
RESERVED = {"end", "graph", "subgraph", "flowchart", "class", "classDef", "style", "click", "default"}


def parsed(text: str) -> tuple[dict[str, str], dict[str, str], list[tuple[str, str]]]:
    """Boxes, frames and arrows of a flowchart; AssertionError for a line that Mermaid would stumble over.

    The grammar is the part of https://mermaid.js.org/syntax/flowchart.html that a plan needs, no more.
    """
    head, *lines = [line.strip() for line in text.splitlines()]
    assert head == "flowchart LR"
    boxes: dict[str, str] = {}
    frames: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    depth = 0
    named: list[str] = []
    for line in lines:
        if match := FRAME.fullmatch(line):
            assert match[1] not in frames
            frames[match[1]] = match[2]
            depth += 1
        elif line == "end":
            depth -= 1
            assert depth >= 0
        elif match := BOX.fullmatch(line):
            assert match[1] not in boxes
            boxes[match[1]] = match[2]
        elif match := ARROW.fullmatch(line):
            arrows.append((match[1], match[3]))
        elif match := CLASS.fullmatch(line):
            named += match[1].split(",")
        else:
            assert CLASS_DEF.fullmatch(line) or line.startswith("%% "), line
    assert depth == 0
    assert not boxes.keys() & frames.keys()
    assert not (boxes.keys() | frames.keys()) & RESERVED
    assert {end for arrow in arrows for end in arrow} | set(named) <= boxes.keys()
    return boxes, frames, arrows


@pytest.mark.parametrize("overrides", [(), EVERYTHING], ids=["default", "everything"])
def test_every_part_and_arrow_of_one_role(plan_of: PlanOf, overrides: tuple[str, ...]) -> None:
    plan = plan_of(*overrides)
    boxes, frames, arrows = parsed(mermaid(plan))
    assert {text.strip('"').partition("<br/>")[0] for text in boxes.values()} == {node.name for node in plan.graph}
    assert len(arrows) == sum(len(node.needs) for node in plan.graph)
    (role,) = plan.layout.roles
    assert f"{role.num_ranks} × {role.hardware.name}" in frames["side_all"]


def test_roles_have_a_side_each_and_the_transfer_between(plan_of: PlanOf) -> None:
    plan = plan_of(*APART)
    boxes, frames, arrows = parsed(mermaid(plan))
    assert "prefill: ranks 0 to 3, 4 × " in frames["side_prefill"]
    assert "decode: ranks 4 to 11, 8 × " in frames["side_decode"]
    assert ("prefill_cache", "decode_cache") in arrows
    crossing = [arrow for arrow in arrows if arrow[0].partition("_")[0] != arrow[1].partition("_")[0]]
    assert len(crossing) == 1
    assert f"{plan.model.growing_bytes_per_token:,} B a token" in mermaid(plan)
    assert len([name for name in boxes if name.startswith("prefill_")]) == len(boxes) / 2


def test_a_side_has_the_ops_of_its_own_chip(plan_of: PlanOf) -> None:
    plan = plan_of(*APART)
    prefill, decode = plan.layout.roles
    others = tuple(structs.replace(op, backend="ascend", implementation="x:ascend") for op in decode.ops)
    node = Node(name="ops.ascend", seam="ops", implementation="x:ascend")
    layout = structs.replace(plan.layout, roles=(prefill, structs.replace(decode, ops=others)))
    boxes, _, _ = parsed(mermaid(structs.replace(plan, layout=layout, graph=(node, *plan.graph))))
    assert "decode_ops_ascend" in boxes and "prefill_ops_ascend" not in boxes
    backends = {op.backend for op in prefill.ops}
    assert all(f"prefill_ops_{name}" in boxes and f"decode_ops_{name}" not in boxes for name in backends)


def test_a_part_between_the_roles_stands_between_them(plan_of: PlanOf) -> None:
    plan = plan_of(*APART)
    parts = (
        Node(name="transfer", seam="transfer", implementation="x:Transfer"),
        Node(name="router", seam="router", implementation="x:Router"),
    )
    _, _, arrows = parsed(mermaid(structs.replace(plan, graph=(*plan.graph, *parts))))
    assert {("prefill_cache", "between_transfer"), ("between_transfer", "decode_cache")} <= set(arrows)
    assert {("between_router", "prefill_engine"), ("between_router", "decode_engine")} <= set(arrows)
    assert ("prefill_cache", "decode_cache") not in arrows


def test_any_text_can_stand_in_a_box(plan_of: PlanOf) -> None:
    plan = plan_of()
    strange = Node(name="end", seam="new", implementation="", reason='a "quoted" <b>#1</b> | [x] ' + "word " * 30)
    text = mermaid(structs.replace(plan, graph=(*plan.graph, strange)))
    boxes, _, _ = parsed(text)
    (label,) = [label for label in boxes.values() if label.startswith('"end<br/>')]
    assert all(len(line) <= WIDTH + 40 for line in label.split("<br/>"))
    assert label.count("<br/>") > 5
    assert "<b>" not in label and "#quot;" in label


def test_what_cannot_be_built_is_marked(plan_of: PlanOf) -> None:
    plan = plan_of(*EVERYTHING)
    planned = [node for node in plan.graph if node.planned]
    assert mermaid(plan).count("(planned)") == len(planned)
    trivial = CLASS.search(mermaid(plan_of()))
    assert trivial and "all_drafter" in trivial[1].split(",") and "all_model" not in trivial[1]
