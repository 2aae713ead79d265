"""The rows of a step that only decodes, worked out on the device from what the host sends: the index arithmetic of a step.

The host knows who decodes, not from which token or position: those are results of steps that may still run. Shapes follow from
a step's size alone. Rows behind the live ones are the first token of the padding slot: they write what nobody reads.

A compact plan is one row of int32 numbers: how many sequences are live, how many drafts to check, how many columns the block
tables have, a spare; then slots, window floors, upper floors and first positions to write, of all S sequences; then the live
ones' tables. The last of the S is always padding.

Legend: T rows · S sequences · N slots · L token columns · K drafts · G n-gram slots · B blocks of a sequence · W window ·
F rope frequencies · P positions · X numbers of a plan.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.draft_allocation import allocate

HEADER = 4  # numbers of a plan before those of its sequences


class SequenceTensors(NamedTuple):
    """What is known of the sequences by slot, int32; confidences float32. Position p lies in column pad + p."""

    tokens_NL: Tensor
    num_tokens_N: Tensor
    length_end_N: Tensor
    drafts_NK: Tensor  # -1 from the first unused one on
    confidence_NK: Tensor


@dataclass(frozen=True)
class DecodeShape:
    """What a step is made for: up to `sequences` live ones; with `drafts` up to `verify_length` of each are checked."""

    rows: int
    sequences: int
    blocks: int
    drafts: bool
    verify_length: int
    pad: int
    ngram: int
    window: int
    ring_slots: int
    tail_slots: int
    block_tokens: int
    ratios: tuple[int, ...]


class EntryNumbers(NamedTuple):
    """Of every row: where the entry goes that it completes (-1: none), how many it may see, and that entry's rotation."""

    rows_T: Tensor
    visible_T: Tensor
    rope_T2F: Tensor


class DecodeNumbers(NamedTuple):
    """Everything but the ropes is int32. `ring_rows` and `tail_rows` are a row's own places; `partner_T` is the row before it
    where it completes a pair, or -1 - n for place n of the tails; `checked_S` drafts are in a sequence's rows."""

    ngram_ids_TG: Tensor
    own_T: Tensor
    sequence_T: Tensor
    slots_T: Tensor
    positions_T: Tensor
    slots_S: Tensor
    tables_SB: Tensor
    row_starts_S1: Tensor  # [S + 1]
    checked_S: Tensor
    ring_rows_T: Tensor
    tail_rows_T: Tensor | None
    partner_T: Tensor | None
    window_rows_TW: Tensor
    upper_window_rows_TW: Tensor
    plain_rope_T2F: Tensor
    rope_T2F: Tensor
    entries: dict[int, EntryNumbers]


class _Sent(NamedTuple):
    num_live: Tensor
    num_drafts: Tensor
    slots_S: Tensor
    window_from_S: Tensor
    upper_from_S: Tensor
    write_from_S: Tensor
    tables_SB: Tensor


class _Placed(NamedTuple):
    live_T: Tensor
    sequence_T: Tensor
    slots_T: Tensor
    positions_T: Tensor
    row_starts_S1: Tensor


def decode_rows(
    plan_X: Tensor, sequences: SequenceTensors, plain_rope_P2F: Tensor, rope_P2F: Tensor, shape: DecodeShape
) -> DecodeNumbers:
    """Of each live sequence its newest token, then the likeliest drafts of all that the plan's budget has room for.

    Drafts that are checked are also written behind the newest token of their sequence. Ropes are those of layers that do not
    compress, and of those that do.
    """
    sent = _read(plan_X, shape)
    checked_S = _hand_out(sent, sequences, shape)
    placed = _place(sent, sequences, checked_S, shape)
    slot_T, position_T = placed.slots_T, placed.positions_T
    ring_T, own_T, pairs = slot_T * shape.ring_slots, _count(shape.rows, plan_X), 2 in shape.ratios
    back_G = _count(shape.ngram, plan_X)
    floor_T, upper_floor_T = _floors(sent, placed)
    return DecodeNumbers(
        ngram_ids_TG=sequences.tokens_NL[slot_T.unsqueeze(1), position_T.unsqueeze(1) + (shape.pad - back_G)],
        own_T=own_T,
        sequence_T=placed.sequence_T,
        slots_T=slot_T,
        positions_T=position_T,
        slots_S=sent.slots_S,
        tables_SB=sent.tables_SB,
        row_starts_S1=placed.row_starts_S1,
        checked_S=checked_S,
        ring_rows_T=ring_T + position_T % shape.ring_slots,
        tail_rows_T=slot_T * shape.tail_slots + position_T % shape.tail_slots if pairs else None,
        partner_T=_partners(placed, own_T, shape) if pairs else None,
        window_rows_TW=_window(position_T, floor_T, ring_T, shape),
        upper_window_rows_TW=_window(position_T, upper_floor_T, ring_T, shape),
        plain_rope_T2F=plain_rope_P2F[position_T],
        rope_T2F=rope_P2F[position_T],
        entries={ratio: _entries(sent, placed, rope_P2F, ratio, shape) for ratio in shape.ratios},
    )


def put_behind(sequences: SequenceTensors, pad: int, slots_R: Tensor, tokens_RM: Tensor, counts_R: Tensor) -> None:
    """The first `counts_R` of `tokens_RM` behind the newest tokens, which stay the newest. `slots_R` is int64.

    Columns are there for all M of them; the others keep what they hold.
    """
    ahead_M = torch.arange(tokens_RM.shape[1], device=slots_R.device)
    place = slots_R.unsqueeze(1), sequences.num_tokens_N[slots_R].unsqueeze(1) + (ahead_M + pad)
    old_RM = sequences.tokens_NL[place]
    sequences.tokens_NL[place] = torch.where(ahead_M < counts_R.unsqueeze(1), tokens_RM.to(torch.int32), old_RM)


def _read(plan_X: Tensor, shape: DecodeShape) -> _Sent:
    count = shape.sequences + 1
    sequence_S1, block_B = _count(count, plan_X).unsqueeze(1), _count(shape.blocks, plan_X)
    num_live, num_drafts, columns = plan_X[0], plan_X[1], plan_X[2]
    there_SB = (sequence_S1 < num_live) & (block_B < columns)
    place_SB = torch.where(there_SB, HEADER + 4 * count + sequence_S1 * columns + block_B, 0)
    of_sequences = plan_X[HEADER : HEADER + 4 * count].view(4, count)
    slots_S, window_from_S, upper_from_S, write_from_S = of_sequences.unbind()
    tables_SB = torch.where(there_SB, plan_X[place_SB], -1)
    return _Sent(num_live, num_drafts, slots_S, window_from_S, upper_from_S, write_from_S, tables_SB)


def _hand_out(sent: _Sent, sequences: SequenceTensors, shape: DecodeShape) -> Tensor:
    """Drafts that each sequence checks, int32 [S]."""
    slots_S = sent.slots_S.long()
    if not shape.drafts:
        return torch.zeros_like(sent.slots_S)
    drafts_SK = sequences.drafts_NK[slots_S]
    available_S = (drafts_SK >= 0).to(torch.int32).cumprod(1).sum(1).to(torch.int32)
    room_S = sequences.length_end_N[slots_S] - sequences.num_tokens_N[slots_S] - 1
    available_S = torch.minimum(available_S, room_S).clamp(0, shape.verify_length)
    checked_S = allocate(sequences.confidence_NK[slots_S], available_S, sent.num_drafts)
    put_behind(sequences, shape.pad, slots_S, drafts_SK, checked_S)
    return checked_S


def _place(sent: _Sent, sequences: SequenceTensors, checked_S: Tensor, shape: DecodeShape) -> _Placed:
    slots_S = sent.slots_S.long()
    row_T, sequence_S = _count(shape.rows, slots_S), _count(len(slots_S), slots_S)
    # A sequence that reached its end in the step before runs its last row once more; the host drops what comes of it.
    start_S = torch.minimum(sequences.num_tokens_N[slots_S], sequences.length_end_N[slots_S] - 1) - 1
    ends_S = torch.where(sequence_S < sent.num_live, checked_S + 1, 0).cumsum(0, dtype=torch.int32)
    row_starts_S1 = torch.cat((ends_S.new_zeros(1), ends_S))
    live_T = row_T < ends_S[-1]
    sequence_T = torch.searchsorted(ends_S, row_T, right=True, out_int32=True).clamp(max=len(slots_S) - 1)
    position_T = start_S[sequence_T] + row_T - row_starts_S1[sequence_T]
    return _Placed(live_T, sequence_T, sent.slots_S[sequence_T], torch.where(live_T, position_T, 0), row_starts_S1)


def _floors(sent: _Sent, placed: _Placed) -> tuple[Tensor, Tensor]:
    """Of the lower layers and of those from the boundary on. A decoding row passes all layers."""
    floor_T, upper_T = sent.window_from_S[placed.sequence_T], sent.upper_from_S[placed.sequence_T]
    return floor_T, torch.where(placed.positions_T >= upper_T, torch.maximum(upper_T, floor_T), floor_T)


def _window(position_T: Tensor, floor_T: Tensor, ring_T: Tensor, shape: DecodeShape) -> Tensor:
    """Ring rows of the keys that a row sees by position, -1 before its floor."""
    wanted_TW = position_T.unsqueeze(1) - _count(shape.window, position_T).flip(0)
    rows_TW = ring_T.unsqueeze(1) + wanted_TW % shape.ring_slots
    return torch.where(wanted_TW >= floor_T.unsqueeze(1), rows_TW, -1)


def _entries(sent: _Sent, placed: _Placed, rope_P2F: Tensor, ratio: int, shape: DecodeShape) -> EntryNumbers:
    position_T, per_block = placed.positions_T, shape.block_tokens // ratio
    entry_T = position_T // ratio
    completes_T = placed.live_T & (position_T % ratio == ratio - 1)
    completes_T &= position_T >= sent.write_from_S[placed.sequence_T]
    block_T = sent.tables_SB[placed.sequence_T, torch.where(completes_T, entry_T // per_block, 0)]
    rows_T = torch.where(completes_T, block_T * per_block + entry_T % per_block, -1)
    visible_T = torch.where(placed.live_T, (position_T + 1) // ratio, 0)
    return EntryNumbers(rows_T, visible_T, rope_P2F[entry_T * ratio])


def _partners(placed: _Placed, own_T: Tensor, shape: DecodeShape) -> Tensor:
    waiting_T = placed.slots_T * shape.tail_slots + (placed.positions_T - 1) % shape.tail_slots
    first_T = own_T == placed.row_starts_S1[placed.sequence_T]
    before_T = torch.where(first_T, -1 - waiting_T, own_T - 1)
    return torch.where(placed.positions_T % 2 == 0, own_T, before_T)


def _count(number: int, like: Tensor) -> Tensor:
    return torch.arange(number, dtype=torch.int32, device=like.device)
