"""A step's rows on the device: one copy from the host, and what is expanded from it once for all layers.

Legend: T rows · G n-gram slots · S sequences · B blocks of a sequence · F rope frequencies · W window · M rows copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.division import Shares
from deepinfer.model.fused import glue
from deepinfer.model.fused.divided_rows import SharedKeys
from deepinfer.model.fused.row_plan import RowPlan, Run, plan_rows, plan_upper

UPPER = "upper/"
PREFILL_ROWS, FEW_ROWS = 16, 8  # rows of a sequence that share a kernel's reads of keys


@dataclass(frozen=True)
class Copies:
    """Stored rows by number, of a layer's ring or its scratch store."""

    from_M: Tensor
    to_M: Tensor


@dataclass(frozen=True)
class EntryRows:
    """Of every row: where the entry goes that it completes (-1: none), and that entry's rotation, of rows on other ranks too;
    how many a row here may see."""

    rows_T: Tensor
    rope_T2F: Tensor
    visible_T: Tensor


@dataclass(frozen=True)
class FusedRows:
    """Row numbers are int32. `ropes` by whether a layer compresses, `entries` by ratio.

    `old` is copied from the ring to the scratch store before new keys are written, `new` after: out of the scratch store into
    rings, or, without one, out of rings into snapshots. Where ranks share the step's rows, entries and tails are of all rows,
    and so are `own_T` and `partner_T`; all else is of those here.
    """

    plan: RowPlan
    token_ids_T: Tensor
    ngram_ids_TG: Tensor
    own_T: Tensor
    sequence_T: Tensor
    tables_SB: Tensor
    ropes_T2F: dict[bool, Tensor]
    entries: dict[int, EntryRows]
    partner_T: Tensor | None
    tails: Copies | None
    store_T: Tensor
    old: Copies | None
    new: Copies | None
    window_rows_TW: Tensor
    upper_window_rows_TW: Tensor
    kept_T: Tensor | None  # which of the rows before the boundary go on
    rows_together: int  # of a sequence, that share reads of index keys; it changes times, never bits
    spread_T: Tensor | None = None  # where these, of all ranks, stand in the step
    shared: SharedKeys | None = None

    @property
    def num_rows(self) -> int:
        return self.plan.num_rows

    @property
    def runs(self) -> list[Run]:
        return self.plan.runs

    @property
    def divided(self) -> bool:
        """Whether ranks share the step's rows."""
        return self.plan.others is not None

    def of_all(self, x_TR: Tensor) -> Tensor:
        """Rows here as those of all ranks, in the step's order."""
        return x_TR if self.plan.others is None else self.plan.others.gather_all(x_TR)()

    def scratch(self, ring_ABR: Tensor) -> Tensor | None:
        """An empty scratch store for a ring's rows, where the step needs one. Its blocks have the ring's size: kernels are
        compiled for it, and would be again for steps of every other number of rows."""
        rows, (_, block_rows, width) = self.plan.scratch_rows, ring_ABR.shape
        return ring_ABR.new_empty(-(-rows // block_rows), block_rows, width) if rows else None

    def spread(self, x_TD: Tensor) -> Tensor:
        """Results of these rows, of all ranks, as results of the whole step's; zeros for those that did not go on."""
        return glue.spread_rows(self.of_all(x_TD), self.spread_T, self.plan.num_step_rows)


class RowMaker:
    """Makes the rows of steps for one model: those of the lower layers, and those of the layers from the boundary on."""

    def __init__(
        self, config: V41Config, layout: CacheLayout, ropes_P2F: dict[bool, Tensor], device: torch.device, compact: bool
    ) -> None:
        self.config, self.layout, self.device, self.compact = config, layout, device, compact
        self.ropes_P2F = ropes_P2F

    def __call__(self, step: StepInput, cache: ModelCache, shares: Shares | None = None) -> tuple[FusedRows, FusedRows]:
        """The same rows twice where all rows pass all layers. Of those here, where ranks share them."""
        made = self.config, self.layout, cache.num_slots
        lower = plan_rows(step, *made, shares)
        upper, upper_floor_T = plan_upper(step, *made, compact=self.compact, shares=shares)
        self.check_positions(step)
        arrays = dict(lower.arrays)
        if upper_floor_T is not None:
            arrays["upper_floor"] = upper_floor_T
        if upper is not None:
            arrays |= {UPPER + name: array for name, array in upper.arrays.items()}
        numbers = glue.to_device(arrays, self.device)
        rows = self.rows_of(lower, numbers)
        if upper is None:
            return rows, rows
        upper_numbers = {name.removeprefix(UPPER): x for name, x in numbers.items() if name.startswith(UPPER)}
        return rows, self.rows_of(upper, upper_numbers)

    def check_positions(self, step: StepInput) -> None:
        assert not len(step.positions) or step.positions.max() < len(self.ropes_P2F[True]), (
            f"position {step.positions.max()} lies behind the {len(self.ropes_P2F[True])} that this model was made for"
        )

    def rows_of(self, plan: RowPlan, numbers: Mapping[str, Tensor]) -> FusedRows:
        floors = numbers["floor"], numbers.get("upper_floor")
        windows = [None if floor is None else self.windows(numbers, floor) for floor in floors]
        assert windows[0] is not None
        positions_T = numbers["positions"]
        return FusedRows(
            plan=plan,
            token_ids_T=numbers["token_ids"],
            ngram_ids_TG=numbers["ngram_ids"],
            own_T=numbers["own"],
            sequence_T=numbers["sequence"],
            tables_SB=numbers["tables"],
            ropes_T2F={compressed: table[positions_T] for compressed, table in self.ropes_P2F.items()},
            entries={
                ratio: self.entries(ratio, numbers)
                for ratio in sorted({source.ratio for source in self.layout.sources})
            },
            partner_T=numbers.get("partner"),
            tails=_copies(numbers, "tail"),
            store_T=numbers["store"],
            old=_copies(numbers, "old"),
            new=_copies(numbers, "new"),
            window_rows_TW=windows[0],
            upper_window_rows_TW=windows[0] if windows[1] is None else windows[1],
            kept_T=numbers.get("kept"),
            rows_together=_rows_together(plan.num_rows, len(numbers["tables"])),
            spread_T=numbers.get("spread"),
            shared=self._shared(numbers),
        )

    def _shared(self, numbers: Mapping[str, Tensor]) -> SharedKeys | None:
        if "shared_store" not in numbers:
            return None
        positions_X = numbers["shared_positions"]
        ropes_X2F = {compressed: table[positions_X] for compressed, table in self.ropes_P2F.items()}
        return SharedKeys(numbers["shared_store"], ropes_X2F)

    def windows(self, numbers: Mapping[str, Tensor], floor_T: Tensor) -> Tensor:
        places = numbers["ring"], numbers["place"]
        sizes = self.config.sliding_window, self.layout.ring_slots
        return glue.window_rows(numbers["positions"], floor_T, *places, *sizes, numbers.get("first"))

    def entries(self, ratio: int, numbers: Mapping[str, Tensor]) -> EntryRows:
        at_T = numbers.get("all_positions", numbers["positions"]) if ratio == 1 else numbers["pair_positions"]
        return EntryRows(numbers[f"entry_rows{ratio}"], self.ropes_P2F[True][at_T], numbers[f"visible{ratio}"])


def _rows_together(num_rows: int, num_sequences: int) -> int:
    """By the step's shape: single rows, checked drafts, or chunks."""
    of_sequence = -(-num_rows // max(1, num_sequences))
    return of_sequence if of_sequence <= FEW_ROWS else PREFILL_ROWS


def _copies(numbers: Mapping[str, Tensor], name: str) -> Copies | None:
    """None where there is nothing to copy, which the host knows."""
    if name + "_from" not in numbers or not numbers[name + "_from"].numel():
        return None
    return Copies(numbers[name + "_from"], numbers[name + "_to"])
