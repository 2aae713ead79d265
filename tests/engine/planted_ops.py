"""Ops that depend on more than their own row, as libraries have them: planted, so that a test of invariance can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from deepinfer.engine import build_model
from deepinfer.model import step_rows
from deepinfer.ops import Ops


def width_decides_the_sum(ops: Ops) -> Ops:
    """A product whose inner dimension is cut in two where there are many rows: split-K as libraries choose it."""

    def linear(x_TK: torch.Tensor, w_NK: torch.Tensor) -> torch.Tensor:
        half = x_TK.shape[1] // 2 if x_TK.shape[0] > 12 else 0
        return torch.nn.functional.linear(x_TK[:, :half], w_NK[:, :half]) + torch.nn.functional.linear(
            x_TK[:, half:], w_NK[:, half:]
        )

    return replace(ops, linear=linear)


def unstable_choice(ops: Ops) -> Ops:
    """The same entries, in an order that depends on how many rows are chosen for at once."""

    def best_entries(scores_TJ: torch.Tensor, count: int) -> torch.Tensor:
        entry_TS = ops.best_entries(scores_TJ, count)
        return entry_TS.roll(len(entry_TS), dims=1)

    return replace(ops, best_entries=best_entries)


def ring_order(patch: pytest.MonkeyPatch) -> None:
    """Window keys in the order in which they lie in the ring."""
    whole = step_rows.windows

    def windows(*arguments):
        found = whole(*arguments)
        near = found.ring_rows
        if near is None:
            return found
        order = near.inner_TW.argsort(dim=1)
        turned = {name: getattr(near, name).gather(1, order) for name in ("outer_TW", "inner_TW", "mask_TW")}
        return replace(found, ring_rows=replace(near, **turned))

    patch.setattr(step_rows, "windows", windows)


def faulty_ops(change: Callable[[Ops], Ops]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant_it(patch: pytest.MonkeyPatch) -> None:
        whole = build_model._ops
        patch.setattr(build_model, "_ops", lambda plan: change(whole(plan)))

    return plant_it


FAULTS = {
    "none": lambda patch: None,
    "width decides the sum": faulty_ops(width_decides_the_sum),
    "ring order": ring_order,
    "unstable choice": faulty_ops(unstable_choice),
}
