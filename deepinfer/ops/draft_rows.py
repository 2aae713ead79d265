"""The two ends of a round of drafting on a device: its rows from what is known of the sequences, its drafts back to there.

A row of the block holds the newest token, the others a noise token. The last row of the sequences' tensors is the padding
slot's, which never drafts.

Legend: S sequences of a round · N slots · M states of the caches · L token columns · Q slots of a block · T = S · Q rows ·
K drafts · W window · P positions · F rope frequencies · E fits of a calibration, of B positions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.decode_rows import SequenceTensors


class DraftShape(NamedTuple):
    """What rounds of one model are made for."""

    pad: int  # position p of a sequence lies in column pad + p
    slots: int
    noise: int  # token
    window: int
    ring_slots: int


class DraftRows(NamedTuple):
    """Tokens and row numbers are int32, `newest_S` -1 where a sequence gets no drafts; `position_S` is int64.

    `window_rows_TW` are rows of the rings, -1 where a sequence has no feature.
    """

    newest_S: Tensor
    position_S: Tensor
    token_ids_T: Tensor
    rope_T2F: Tensor
    window_rows_TW: Tensor


def draft_rows(
    slots_S: Tensor,
    going_S: Tensor,
    sequences: SequenceTensors,
    floor_M: Tensor,
    rope_P2F: Tensor,
    shape: DraftShape,
) -> DraftRows:
    """Of the blocks behind each newest token. No drafts get those that are not `going` (bool), and those with room for one
    token or none. `slots_S` int64; positions of a slot before `floor_M` (int32) have no features."""
    tokens_NL, num_tokens_N, length_end_N = sequences[:3]
    num_S = num_tokens_N[slots_S]
    wants_S = going_S & (num_S + 1 < length_end_N[slots_S]) & (slots_S != len(tokens_NL) - 1)
    position_S = torch.where(wants_S, num_S - 1, 0)  # one that wants no drafts reads next to nothing
    newest_S = torch.where(wants_S, tokens_NL[slots_S, position_S + shape.pad], -1)
    return rows_behind(newest_S, position_S, slots_S.int(), floor_M[slots_S], rope_P2F, shape)


def rows_behind(
    newest_S: Tensor, position_S: Tensor, slots_S: Tensor, floor_S: Tensor, rope_P2F: Tensor, shape: DraftShape
) -> DraftRows:
    """Of blocks behind given tokens (-1: any) at given positions, all int32."""
    number_Q = torch.arange(shape.slots, dtype=torch.int32, device=newest_S.device)
    token_ids_SQ = torch.where(number_Q == 0, newest_S.clamp(min=0).unsqueeze(1), shape.noise)
    back_W = torch.arange(-shape.window, 0, dtype=torch.int32, device=newest_S.device)
    wanted_SW = position_S.unsqueeze(1) + back_W
    rows_SW = wanted_SW % shape.ring_slots + (slots_S * shape.ring_slots).unsqueeze(1)
    rows_SW = torch.where(wanted_SW >= floor_S.unsqueeze(1), rows_SW, -1)
    return DraftRows(
        newest_S=newest_S,
        position_S=position_S.long(),
        token_ids_T=token_ids_SQ.flatten(),
        rope_T2F=rope_P2F[(position_S.unsqueeze(1) + number_Q).flatten()],
        window_rows_TW=rows_SW.repeat_interleave(shape.slots, 0),
    )


def weigh_drafts(
    tokens_SK: Tensor,
    evidence_SK: Tensor,
    temperature_S: Tensor,
    temperature_E: Tensor,
    scale_EB: Tensor,
    offset_EB: Tensor,
    slots_S: Tensor,
    sequences: SequenceTensors,
) -> Tensor:
    """Keep drafts (int32, -1: none) and the chance of each in `sequences`; the same as int32 [S, 2K]: tokens, bits of chances.

    The chance is sigmoid(scale · evidence + offset) of the fit whose temperature is nearest, the first of those equally near,
    worked out in float64 and rounded to float32; 0 without a token, and for NaN. Sequences differ, but for the padding slot.
    """
    depth = tokens_SK.shape[1]
    nearest_S = (temperature_S.unsqueeze(1) - temperature_E).abs().argmin(1)
    scale_SK, offset_SK = scale_EB[nearest_S, :depth], offset_EB[nearest_S, :depth]
    chance_SK = (evidence_SK.double() * scale_SK + offset_SK).sigmoid().nan_to_num(nan=0.0).float()
    chance_SK = torch.where(tokens_SK >= 0, chance_SK, 0.0)
    sequences.drafts_NK[slots_S] = tokens_SK
    sequences.confidence_NK[slots_S] = chance_SK
    return torch.cat((tokens_SK, chance_SK.view(torch.int32)), 1)
