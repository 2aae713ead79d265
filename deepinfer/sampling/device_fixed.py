"""Sampling of one size from memory that stays where it is, so that a graph can hold all of its launches.

Smaller steps are padded: padded rows belong to no sequence, padded sequences have no rows. Masks and edits, whose sizes differ
from step to step, lie in a room that all sizes share. Legend: S sequences · T rows · X starts and the end · K drafts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.sampling import device_edits, device_questions, device_results
from deepinfer.sampling.device_rows import Launched
from deepinfer.sampling.device_upload import Upload
from deepinfer.sampling.lent_rows import LentRows, lent

if TYPE_CHECKING:
    from deepinfer.interfaces import VerifyRows
    from deepinfer.sampling.device_room import FixedRoom
    from deepinfer.sampling.device_rows import DeviceSampler
    from deepinfer.sampling.history import History


class SamplingSize(NamedTuple):
    """`columns` of log probabilities: at least one more than any row wants, or 0."""

    rows: int
    sequences: int
    columns: int


class FixedRows:
    """`write` for the host, then `send` and `choose` for the device: these two may be captured. One step at a time."""

    def __init__(
        self, sampler: DeviceSampler, room: FixedRoom, size: SamplingSize, depth: int, padding_slot: int
    ) -> None:
        self._sampler, self._room, self.size, self._padding_slot = sampler, room, size, padding_slot
        sections = device_questions.sections(size.rows, size.sequences, depth)
        self._upload = Upload(sections | {"picked_T": ("int32", (size.rows,))}, sampler.device, stays=True)
        self._sent = self._upload.send()
        self._asked = device_questions.asked(self._sent, room.edits, room.masks_MW)
        self._fetched = torch.empty(
            device_results.size_of(size.rows, size.columns),
            dtype=torch.int32,
            pin_memory=sampler.device.type == "cuda",
        )
        self._results: tuple[Tensor, Tensor, Tensor | LentRows] | None = None
        self._live = 0, 0  # rows and sequences of the step that was written last
        self._views: dict[str, np.ndarray] = {}  # of the host's arrays: what is live
        self._parts: tuple[Tensor, ...] | None = None  # of the device's
        self._histories: list[tuple[int, History]] = []
        self.write_nothing()

    def write(self, rows: VerifyRows, picked: np.ndarray) -> None:
        """A step whose edits the room takes; `picked` int64 [T]: which hidden state each row of logits comes from.

        Masks and edits are sent at once.
        """
        live, num_rows_S = (int(rows.row_starts[-1]), len(rows.slots)), np.diff(rows.row_starts)
        if live != self._live:
            self._resize(*live)
        edits, views = self._sampler.take_edits(rows), self._views
        if rows.masks:
            views = views | self._room.host("masks_MW")
        num_masks = device_questions.write(self._sampler.params, rows, num_rows_S, views)
        if num_masks:
            self._room.send(num_masks, "masks_MW")
        if edits:
            names = ("edit_ids_E", "edit_counts_E", "edit_biases_E")[: 3 if device_edits.are_biased(edits) else 2]
            num_places = device_edits.lay_out(edits, num_rows_S, views | self._room.host(*names))
            self._room.send(num_places, *names)
            if len(names) == 2:
                self._room.clear_biases(num_places)
        self._histories = device_edits.histories(edits)
        self._views["picked_T"][:] = picked

    def write_nothing(self) -> None:
        """A step that samples nobody."""
        self._resize(0, 0)

    def _resize(self, num_rows: int, num_sequences: int) -> None:
        """Padding is written where steps differ in size only: nothing else writes there."""
        self._live, self._parts, host = (num_rows, num_sequences), None, self._upload.host
        device_questions.write_padding(host, num_rows, num_sequences, self._padding_slot)
        host["picked_T"][num_rows:] = 0
        self._views = {
            **{name: host[name][:, :num_rows] for name in ("wide_2T", "fine_6T", "whole_4T")},
            **{name: host[name][:num_sequences] for name in ("slots_S", "drafts_SK")},
            "edit_starts_X": host["edit_starts_X"][: num_rows + 1],
            "row_starts_X": host["row_starts_X"][: num_sequences + 1],
            "picked_T": host["picked_T"][:num_rows],
        }

    def send(self) -> dict[str, Tensor]:
        """What was written, on the device; `picked_T` with it. What the step before left is let go of."""
        self._results = None
        return self._upload.send()

    def choose(self, logits_TV: Tensor, sent: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(tokens int32 [T], tokens that each sequence gets int32 [S]); they are where later steps of a graph leave theirs."""
        sampled, counts_S = self._sampler.choose(logits_TV, self._asked, sent, self.size.columns)
        device_results.fetch(sampled, self._fetched)
        self._results, self._parts = (sampled.token_R, counts_S, lent(logits_TV)), None
        return sampled.token_R, counts_S

    def launched(self, rows: VerifyRows) -> Launched:
        """The step that was written last, once it is chosen or replayed."""
        assert self._results is not None, "nothing was chosen"
        if self._parts is None:
            self._parts = self._live_parts(*self._results[:2])
        token_T, counts_S, starts_X, slots_S = self._parts
        return Launched(
            rows=rows,
            token_T=token_T,
            counts_S=counts_S,
            starts_X=starts_X,
            slots_S=slots_S,
            logits_TV=self._results[2],
            columns=self.size.columns,
            fetched=self._fetched,
            num_logprobs_S=self._sampler.params.logprobs_N[rows.slots],
            histories=self._histories,
        )

    def _live_parts(self, token_T: Tensor, counts_S: Tensor) -> tuple[Tensor, ...]:
        (num_rows, num_sequences), sent = self._live, self._sent
        starts_X = sent["row_starts_X"][: num_sequences + 1]
        return token_T[:num_rows], counts_S[:num_sequences], starts_X, sent["slots_S"][:num_sequences]
