"""How rows of a step are divided among ranks that all keep complete caches: the seam between a model and the others' rows.

Legend: T rows of a step, on all ranks together · S sequences · R numbers of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from deepinfer.interfaces import StepInput

Gather = Callable[["Tensor"], Callable[[], "Tensor"]]  # this rank's rows [·, R] → call to wait for rows of all ranks


class Shares(Protocol):
    """Who has which row of one step. The same on all ranks but for `here`."""

    owner_T: np.ndarray  # int64: rank of each row
    here: np.ndarray  # int64: the rows of this rank, rising

    def gather(self, rows: np.ndarray) -> Gather:
        """Of the step's rows `rows` (rising): their values on every rank, in that order. All ranks make the same calls."""

    def only(self, kept: np.ndarray) -> Self:
        """Shares of a step of the `kept` rows alone (rising), which stay where they are."""


class RowDivision(Protocol):
    """Divides steps."""

    def divide(self, step: StepInput) -> Shares | None:
        """The same on all ranks; None: every rank computes all rows, and nothing is gathered."""

    def divides(self, rows_S: np.ndarray) -> bool:
        """Whether a step whose sequences have so many rows is divided. It follows from them alone."""
