"""What is asked of each row of logits, from the parameters of the slots: written on the host, and as the device's op takes it.

Legend: S sequences · T rows · X starts and the end · K drafts · M masks · W words of a mask · N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from deepinfer.ops.sampling_rows import SamplingRows
from deepinfer.sampling.device_upload import Sections
from deepinfer.sampling.slot_params import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import VerifyRows
    from deepinfer.sampling.slot_params import SlotParams

_NO_MASK = -1
Edits = tuple[Tensor, Tensor, Tensor]  # ids, biases, counts of all rows' edits


def sections(num_rows: int, num_sequences: int, depth: int) -> Sections:
    """Of a step without masks and edits."""
    return {
        "wide_2T": ("int64", (2, num_rows)),
        "fine_6T": ("float64", (6, num_rows)),
        "whole_4T": ("int32", (4, num_rows)),
        "edit_starts_X": ("int32", (num_rows + 1,)),
        "row_starts_X": ("int32", (num_sequences + 1,)),
        "slots_S": ("int32", (num_sequences,)),
        "drafts_SK": ("int32", (num_sequences, depth)),
    }


def mask_sections(rows: VerifyRows, vocab_size: int) -> Sections:
    """Of the masks, if there are any."""
    if not rows.masks:
        return {}
    return {"masks_MW": ("int32", (1 + sum(len(masks) for masks in rows.masks.values()), -(-vocab_size // 32)))}


def write(params: SlotParams, rows: VerifyRows, num_rows_S: np.ndarray, host: Mapping[str, np.ndarray]) -> int:
    """All but edits into the sections, of which no row has any so far; returns how many masks were written."""
    assert (rows.positions >= params.num_prompt_N[rows.slots]).all(), "rows inside a prompt are not sampled"
    slots_T, num_rows = rows.slots, int(rows.row_starts[-1])
    seed_T, position_T = host["wide_2T"]
    if num_rows == len(rows.slots):
        position_T[:] = rows.positions
    else:
        slots_T = np.repeat(rows.slots, num_rows_S)
        position_T[:] = np.arange(num_rows) + np.repeat(rows.positions - rows.row_starts[:-1], num_rows_S)
    seed_T[:] = params.seed_N.view(np.int64)[slots_T]
    np.take(params.fine_6N, slots_T, axis=1, out=host["fine_6T"], mode="clip")
    np.take(params.whole_3N, slots_T, axis=1, out=host["whole_4T"][:3], mode="clip")
    host["whole_4T"][3] = _NO_MASK
    host["edit_starts_X"][:] = 0
    host["row_starts_X"][:], host["slots_S"][:], host["drafts_SK"][:] = rows.row_starts, rows.slots, rows.drafts
    return _write_masks(rows, num_rows_S, host["whole_4T"][3], host["masks_MW"]) if rows.masks else 0


def write_padding(host: Mapping[str, np.ndarray], num_rows: int, num_sequences: int, padding_slot: int) -> None:
    """Behind what is live: rows that take the best token, and sequences without rows."""
    for name, off in (("wide_2T", 0), ("fine_6T", 0.0)):
        host[name][:, num_rows:] = off
    host["whole_4T"][:, num_rows:] = np.array([[0], [NOT_ASKED], [0], [_NO_MASK]])
    host["edit_starts_X"][num_rows:] = 0
    host["row_starts_X"][num_sequences:] = num_rows
    host["slots_S"][num_sequences:], host["drafts_SK"][num_sequences:] = padding_slot, -1


def asked(sent: Mapping[str, Tensor], edits: Edits, no_masks_MW: Tensor) -> SamplingRows:
    """The same, on the device."""
    seed_T, position_T = sent["wide_2T"].unbind()
    temperature_T, top_p_T, min_p_T, repetition_T, frequency_T, presence_T = sent["fine_6T"].unbind()
    top_k_T, num_logprobs_T, processed_T, mask_row_T = sent["whole_4T"].unbind()
    ids_E, biases_E, counts_E = edits
    return SamplingRows(
        seed_R=seed_T, position_R=position_T, temperature_R=temperature_T, top_p_R=top_p_T, min_p_R=min_p_T,
        repetition_R=repetition_T, frequency_R=frequency_T, presence_R=presence_T, top_k_R=top_k_T,
        num_logprobs_R=num_logprobs_T, processed_R=processed_T, mask_row_R=mask_row_T,
        masks_MW=sent.get("masks_MW", no_masks_MW), edit_starts_X=sent["edit_starts_X"],
        edit_ids_E=ids_E, edit_biases_E=biases_E, edit_counts_E=counts_E,
    )  # fmt: skip


def _write_masks(rows: VerifyRows, num_rows_S: np.ndarray, mask_row_T: np.ndarray, masks_MW: np.ndarray) -> int:
    """Mask 0 leaves nothing: it is that of rows that a sequence has no mask for, behind an illegal draft."""
    masked = np.fromiter(rows.masks, np.int64, len(rows.masks))
    num_masks = np.array([len(masks) for masks in rows.masks.values()])
    assert num_masks.all(), f"sequence {masked[num_masks.argmin()]} has a grammar and no mask for its first row"
    firsts, used = rows.row_starts[masked], np.minimum(num_masks, num_rows_S[masked])
    for r in masked[used < num_rows_S[masked]].tolist():
        mask_row_T[rows.row_starts[r] : rows.row_starts[r + 1]] = 0
    total = int(used.sum())
    numbers = np.arange(total)
    mask_row_T[np.repeat(firsts - (np.cumsum(used) - used), used) + numbers] = 1 + numbers
    masks_MW[0] = 0
    parts = [masks[:count] for masks, count in zip(rows.masks.values(), used.tolist())]
    np.concatenate(parts, out=masks_MW[1 : 1 + total].view(np.uint32))
    return 1 + total
