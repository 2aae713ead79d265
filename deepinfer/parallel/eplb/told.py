"""What a balancer is at, for people to read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deepinfer.parallel.eplb.balancer import BalancerState

HEAD = ("rank", "slots a layer", "of them for copied experts", "rows", "share")


def told(state: BalancerState) -> Iterator[str]:
    """Lines: what moves, how even the loads are, and a table of ranks."""
    slots, ranks = len(state.placement[0]), state.num_ranks
    going = "at rest" if state.at_rest else f"planning: {state.planning}, experts to move: {state.moves_left:,}"
    yield f"experts   {len(state.placement)} layers, {slots} slots on {ranks} ranks, step {state.num_steps:,}"
    yield (
        f"moves     {going}; {state.num_rebalances:,} new placements and {state.moved:,} experts moved "
        f"({state.moved_bytes:,} B) since the start"
    )
    if state.mean_tokens:
        yield (
            f"balance   {state.peak_tokens / state.mean_tokens:.3f}, where 1 is perfect: {state.peak_tokens:,.0f} rows of the "
            f"busiest rank of each step and layer, {state.mean_tokens:,.0f} of a rank on average; {state.window_steps} steps"
        )
    else:
        yield "balance   no loads were added up yet"
    yield from _aligned([HEAD, *_rows(state)])


def _rows(state: BalancerState) -> Iterator[tuple[str, ...]]:
    layers, slots = len(state.placement), len(state.placement[0]) // state.num_ranks
    for rank, rows in enumerate(state.rank_tokens):
        copied = 0
        for expert_P in state.placement:
            copies = Counter(expert_P)
            copied += sum(copies[expert] > 1 for expert in expert_P[rank * slots : (rank + 1) * slots])
        share = f"{rows / sum(state.rank_tokens):.1%}" if state.mean_tokens else "-"
        yield f"{rank}", f"{slots}", f"{copied / layers:.1f}", f"{rows:,.0f}", share


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
