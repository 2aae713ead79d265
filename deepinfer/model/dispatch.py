"""How rows get to their experts and to their n-gram memory: the seam between a layer and what lies on other ranks.

Where something lies elsewhere, every rank asks each layer once in every forward pass, with rows or without: a rank that has
none serves the rows of others.

Legend: T rows · X chosen experts of a row · D hidden · R table rows of a token · F numbers of a table row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.layer_weights import ExpertWeights

Activation = Callable[["Tensor", "Tensor"], "Tensor"]  # (w13 · x, routing weight of each row) → input of w2


class LayerDispatch(Protocol):
    """The routed experts of one layer, wherever they are."""

    def start(self, x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor) -> Callable[[], Tensor]:
        """Send rows off; the call that comes back waits and gives Σ over slots of expert(pick)(x) [T, D].

        Between the two the caller computes what it has at hand. T may be 0: others' rows are served all the same.
        """

    def serve(self) -> None:
        """What `start` and its wait do where there are no rows; nothing where all experts are here."""


class ExpertDispatch(Protocol):
    """Makes the dispatch of each layer. `layer` counts the trunk's, then the draft module's."""

    def layer(self, layer: int, weights: ExpertWeights, activate: Activation) -> LayerDispatch: ...

    def experts_of(self, layer: int) -> tuple[int, ...] | None:
        """The experts whose weights this rank holds, in the order of its slots; None: all of them."""


class RowLookup(Protocol):
    """One n-gram table, wherever its rows are."""

    def __call__(self, rows_TR: Tensor) -> Tensor:
        """Rows [T, R, F] of ids int64 [T, R]. T may be 0: others' lookups are served all the same."""


class NgramTables(Protocol):
    """Makes the lookup of each n-gram table, counted in the order of their layers."""

    def table(self, number: int, rows_NF: Tensor) -> RowLookup:
        """`rows_NF`: the rows of it that are here."""
