"""`plan format=ranks`: who stands where and holds what."""

from collections.abc import Callable

import pytest

from deepinfer.cli.main import main
from deepinfer.plan.ranks import rank_lines
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
SPLIT = (
    "hardware=gb300",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep64",
    "deploy.prefill.replicas=3",
    "deploy.decode.parallel.redundant_experts=64",
    "speculation=dspark",
)


def table(plan: Plan) -> list[list[str]]:
    """Cells of the rows below the head."""
    lines = rank_lines(plan)
    return [line.split("  ") for line in lines[1 : lines.index("")]]


def cells(line: list[str]) -> list[str]:
    return [cell.strip() for cell in line if cell.strip()]


def test_few_ranks_have_a_line_each(plan_of: PlanOf) -> None:
    plan = plan_of(
        "hardware=h200", "parallel=ep8", "parallel.context=2", "parallel.attention_dp=8", "speculation=dspark"
    )
    rows = [cells(row) for row in table(plan)]
    assert len(rows) == 16
    assert rows[9] == ["9", "all", "1", "1", "4", "1", "1", "1", "48-95", "16-31", "48.00 M"]
    for row, rank in zip(rows, plan.layout.ranks):
        assert row[:6] == [
            str(rank.rank),
            rank.role,
            *map(str, (rank.node, rank.device, rank.attention_dp, rank.context)),
        ]
        assert row[8] == f"{rank.experts[0]}-{rank.experts[1] - 1}"


def test_many_ranks_have_a_line_a_node(plan_of: PlanOf) -> None:
    plan = plan_of("hardware=ascend950", "parallel=ep128")
    rows = [cells(row) for row in table(plan)]
    assert len(rows) == plan.layout.num_nodes == 16
    assert rows[-1] == ["120-127", "all", "15", "0-7", "120-127", "0", "0", "120-127", "360-383", "-", "48.00 M"]
    assert "128 in all" in rank_lines(plan)[-2]


def test_roles_replicas_and_copies(plan_of: PlanOf) -> None:
    plan = plan_of(*SPLIT)
    rows = [cells(row) for row in table(plan)]
    assert [row[1] for row in rows] == ["prefill-0", "prefill-1", "prefill-2", *["decode"] * 16]
    assert rows[2] == ["8-11", "prefill-2", "2", "0-3", "as prefill-0"]
    experts = [row[8] for row in rows if len(row) > 5]
    assert experts[0] == "0-383"
    assert experts[1] == "0-27"
    assert experts[-3:] == ["364-383 + 8 copies", "28 copies", "28 copies"]
    assert any(line.startswith("copies: ") for line in rank_lines(plan))


@pytest.mark.parametrize("overrides", [("hardware=cpu",), ("hardware=h200", "parallel=ep64"), SPLIT])
def test_two_screens_and_no_trailing_space(plan_of: PlanOf, overrides: tuple[str, ...]) -> None:
    lines = rank_lines(plan_of(*overrides))
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 132
    assert all(line == line.rstrip() for line in lines)


def test_every_rank_is_in_the_table_once(plan_of: PlanOf) -> None:
    plan = plan_of(*SPLIT)
    told: list[int] = []
    for row in table(plan):
        low, _, high = cells(row)[0].partition("-")
        told += range(int(low), int(high or low) + 1)
    assert told == list(range(plan.layout.num_ranks))


def test_where_the_tables_live(plan_of: PlanOf) -> None:
    whole = rank_lines(plan_of("hardware=cpu"))
    assert "all 2,064" in whole[1]
    host = rank_lines(plan_of("hardware=h200", "parallel=ep8", "parallel.engram=host"))
    assert host[1].endswith("on the host") and host[-1].endswith("n-gram tables host")


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hardware=h200", "parallel=ep8", "format=ranks"]) == 0
    assert capsys.readouterr().out.startswith("ranks  role  node  device")
