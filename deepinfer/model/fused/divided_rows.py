"""The rows of a step that ranks share: each has some of them, and writes what all of them leave in the caches.

A rank computes queries and keys of its own rows. Window keys that rows of others need, and those that go to rings, travel as
they are before the norm; inputs of the compressors do of all rows, so that every rank stores all entries. Places in stores are
those of the undivided step: rows of others that nobody here looks at stay empty.

Legend: T rows of the step, on all ranks · X rows whose window keys every rank gets · F rope frequencies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.division import Gather, Shares
from deepinfer.model.ring_writes import ring_writes
from deepinfer.model.windows import shared_rows

OF_ROWS = ("token_ids", "ngram_ids", "positions", "sequence", "floor", "ring", "store", "place")
VISIBLE = "visible"  # so begin the names of how many entries rows see


@dataclass(frozen=True)
class Others:
    """How rows here come by those of other ranks. All ranks gather the same in the same order."""

    shared_X: np.ndarray  # into the step's rows
    gather_all: Gather
    gather_window: Gather  # of `shared_X`


@dataclass(frozen=True)
class SharedKeys:
    """Where the X window keys go that all ranks get, -1 for those of this rank; rotations by whether a layer compresses."""

    store_X: Tensor
    ropes_X2F: dict[bool, Tensor]


def others_of(step: StepInput, shares: Shares, config: V41Config, layout: CacheLayout, num_slots: int) -> Others:
    written = ring_writes(step, layout.ring_slots, num_slots).rows_T.numpy()
    shared_X = shared_rows(step, shares.owner_T, written, config.sliding_window)
    all_T = np.arange(len(step.positions))
    return Others(shared_X, shares.gather(all_T), shares.gather(shared_X))


def divided_arrays(
    arrays: Mapping[str, np.ndarray], step: StepInput, shares: Shares, others: Others
) -> dict[str, np.ndarray]:
    """Of a plan of all rows: some for the rows here, the rest, by which entries and tails are written, as they are."""
    shared_X = others.shared_X
    here_X = np.isin(shared_X, shares.here, assume_unique=True)
    found = {
        name: array[shares.here] if name in OF_ROWS or name.startswith(VISIBLE) else array
        for name, array in arrays.items()
    }
    return found | {
        "all_positions": step.positions,
        "shared_positions": step.positions[shared_X],
        "shared_store": np.where(here_X, -1, arrays["store"][shared_X]),
    }
