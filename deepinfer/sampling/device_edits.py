"""Edits of all sequences of a step for the device's sampler: bias, penalties, bad words, minimum lengths, behind drafts.

A sequence has one list of tokens, kept from step to step. A step lays it out for each of the sequence's rows, with what
differs between them: the drafts that stand before a row, and what only that row may not choose.

Legend: S sequences · X tokens ruled out · E places of all rows' edits · D drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels import cpu_edit_lists
from deepinfer.sampling.device_upload import Sections
from deepinfer.sampling.edit_list import EditList

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import VerifyRows
    from deepinfer.sampling.history import History
    from deepinfer.sampling.slot_edits import SlotEdits
    from deepinfer.sampling.slot_params import SlotParams

_NONE = np.empty(0, np.int64)
_NO_BIASES = np.empty(0)


@dataclass(slots=True)
class SequenceEdits:
    """What is edited in the rows of sequence `number` of a step."""

    number: int
    list: EditList
    num_rows: int
    drafts_D: np.ndarray  # int64: those that penalties count
    ruled_X: np.ndarray  # int64: tokens ruled out in rows `ruled_rows_X`, beside what the list rules out in all
    ruled_rows_X: np.ndarray

    @property
    def most_places(self) -> int:
        return self.num_rows * (self.list.length + len(self.drafts_D) + len(self.ruled_X))


class DeviceEdits:
    """Keeps the lists of the sequences in the slots; a list is made when its sequence is first sampled."""

    def __init__(self, params: SlotParams) -> None:
        self._params = params
        self._lists: list[EditList | None] = [None] * params.num_slots

    def of(self, rows: VerifyRows, num_rows_S: np.ndarray) -> list[SequenceEdits]:
        """Of the sequences that edit anything; lists are brought up to the positions of `rows`."""
        found = []
        for r in np.flatnonzero(self._params.edited_N[rows.slots]).tolist():
            list_ = self._list(int(rows.slots[r]))
            num_rows, position = int(num_rows_S[r]), int(rows.positions[r])
            list_.follow(position)
            drafts_D = rows.drafts[r, : num_rows - 1]
            ruled_X, ruled_rows_X = _ruled_out(list_.edits, position, num_rows, drafts_D)
            one = SequenceEdits(r, list_, num_rows, drafts_D if list_.edits.penalised else _NONE, ruled_X, ruled_rows_X)
            list_.make_room(len(one.drafts_D) + len(ruled_X))
            found.append(one)
        return found

    def _list(self, slot: int) -> EditList:
        edits, list_ = self._params.edits[slot], self._lists[slot]
        assert edits is not None, f"slot {slot} is empty"
        if list_ is None or list_.edits is not edits:
            list_ = self._lists[slot] = EditList(edits, self._params.vocab_size)
        return list_


def histories(edits: list[SequenceEdits]) -> list[tuple[int, History]]:
    """(sequence, its history) where there is one."""
    found = [(one.number, one.list.edits.history) for one in edits]
    return [(number, history) for number, history in found if history is not None]


def _ruled_out(edits: SlotEdits, position: int, num_rows: int, drafts_D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the rows that may not choose them: ends of a too short answer, and what completes a bad word."""
    num_answer, parts, numbers = position - edits.num_prompt, [], []
    for row in range(min(num_rows, edits.min_tokens - num_answer)):
        parts.append(edits.ending_ids)
        numbers.append(row)
    if edits.bad_words and edits.history is not None:
        answer = np.concatenate([edits.history.before(position)[edits.num_prompt :], drafts_D])
        for row in range(num_rows):
            parts.append(edits.bad_words.completing(answer[: num_answer + row]))
            numbers.append(row)
    if not parts:
        return _NONE, _NONE
    return np.concatenate(parts), np.repeat(numbers, [len(part) for part in parts])


def are_biased(edits: list[SequenceEdits]) -> bool:
    """Whether anything is biased or ruled out; else only tokens that occurred are penalised."""
    return any(one.list.has_biases or len(one.ruled_X) for one in edits)


def sections(edits: list[SequenceEdits]) -> Sections:
    """What has to go to the device for these, by name, dtype and size: upper bounds."""
    if not edits:
        return {}
    places = (sum(one.most_places for one in edits),)
    wanted: Sections = {"edit_ids_E": ("int32", places), "edit_counts_E": ("int32", places)}
    if are_biased(edits):
        wanted["edit_biases_E"] = ("float64", places)
    return wanted


def lay_out(edits: list[SequenceEdits], num_rows_S: np.ndarray, host: Mapping[str, np.ndarray]) -> int:
    """Writes the sections, and `edit_starts_X`, zeros so far: where each row's edits begin. Returns the places written."""
    outputs = host["edit_ids_E"], host["edit_counts_E"], host.get("edit_biases_E", _NO_BIASES)
    lengths_S, start = np.zeros(len(num_rows_S), np.int64), 0
    for one in edits:
        list_ = one.list
        length = cpu_edit_lists.lay_out(
            list_.place_V, list_.ids_L, list_.counts_L, list_.biases_L, list_.length, one.num_rows,
            one.drafts_D, one.ruled_X, one.ruled_rows_X, start, *outputs,
        )  # fmt: skip
        lengths_S[one.number] = length
        start += one.num_rows * length
    np.cumsum(np.repeat(lengths_S, num_rows_S), out=host["edit_starts_X"][1:])
    return start


def sent_edits(sent: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, biases, counts) [E] on the device."""
    ids_E, biases_E = sent["edit_ids_E"], sent.get("edit_biases_E")
    return ids_E, torch.zeros_like(ids_E, dtype=torch.float64) if biases_E is None else biases_E, sent["edit_counts_E"]
