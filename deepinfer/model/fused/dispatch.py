"""The seam between the fused model and routed experts on other ranks.

Every rank asks each layer once in every step that ranks share, with rows of its own or without, and `begin` comes before: it
says how many rows the rank has that has most of them, which all ranks agreed upon.

Legend: T rows · X chosen experts of a row · D hidden · P parts · Y parts of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.model.fused.stored_weights import FusedExpertWeights
    from deepinfer.model.fused.tables import Begun
    from deepinfer.ops.expert_permutation import Permutation

Routed = Callable[
    ["Tensor", "Permutation"], "Tensor"
]  # (rows on the FP8 grid, pairs of them) → results [P, D] of pairs


class Parts(NamedTuple):
    """What a layer's rows are summed of, as `DeviceOps.combine` takes it."""

    parts_PD: Tensor
    places_TY: Tensor  # int32; a negative place is no part


class FusedLayerDispatch(Protocol):
    """The routed experts of one layer, wherever they are."""

    def start(self, quantised_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor) -> Callable[[], Parts]:
        """Send rows off; the call that comes back serves others' rows, and has what became of these.

        What is launched between the two runs while rows travel.
        """

    def serve(self) -> None:
        """What `start` and its call do where this rank has no rows in the layer."""


class FusedDispatch(Protocol):
    """Makes the dispatch of each layer. `layer` counts the trunk's, then the draft module's."""

    @property
    def most_rows(self) -> int:
        """Of steps whose launches wait for nothing; longer ones are launched without a graph on every rank."""

    def layer(self, layer: int, weights: FusedExpertWeights, routed: Routed) -> FusedLayerDispatch: ...

    def experts_of(self, layer: int) -> tuple[int, ...]:
        """The experts whose weights this rank holds, in the order of its slots."""

    def begin(self, rows: int, live_1: Tensor | None = None) -> None:
        """The layers that follow belong to a step of up to `rows` rows on every rank, the same number on all of them.

        `live_1` int32 [1]: rows of this rank from there on are padding, which nobody serves; their sums mean nothing. Without
        it all rows are live. Launches only, so that it may be part of a graph.
        """


def fits_graph(elsewhere: Begun | None, shared: int) -> bool:
    """Whether a step in which some rank has `shared` rows may be a graph, as far as what is on other ranks goes."""
    return elsewhere is None or shared <= elsewhere.most_rows
