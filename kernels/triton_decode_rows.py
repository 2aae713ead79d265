"""The rows of a decode step from its compact plan, a launch or two for all of them. Twin: deepinfer/ops/decode_rows.py.

A program works one row out, and finds its sequence by summing over all of them: there is nothing to wait for. With drafts a
first launch ranks them, every one against all others, so that equal ones have one order.

Legend: T rows · S sequences, the last of which is padding · K drafts · G n-gram slots · B blocks · W window.
"""

import torch
import triton
import triton.language as tl
from deepinfer.kernels.triton_overlap import OVERLAP, wait_for_earlier_launches
from deepinfer.kernels.triton_rank_drafts import rank_drafts
from torch import Tensor

from deepinfer.ops.decode_rows import HEADER, DecodeNumbers, DecodeShape, EntryNumbers, SequenceTensors

TABLE_NUMBERS = 1024  # of a program


@triton.jit
def _sequence_of(
    row, plan_ptr, won_ptr, checked_ptr, row_starts_ptr, num_sequences,
    SEQUENCES: tl.constexpr, DEPTH: tl.constexpr, DRAFTS: tl.constexpr,
):  # fmt: skip
    """Number of a row's sequence, the first row of that, and whether the row is a live one. Row 0 writes all starts down."""
    sequence_S = tl.arange(0, SEQUENCES)
    there_S, num_live = sequence_S < num_sequences, tl.load(plan_ptr)
    checked_S = tl.zeros([SEQUENCES], tl.int32)
    if DRAFTS:
        for depth in tl.static_range(DEPTH):
            checked_S += tl.load(won_ptr + depth * num_sequences + sequence_S, mask=there_S, other=0)
        end_S = tl.cumsum(tl.where(sequence_S < num_live, checked_S + 1, 0), 0)
        before_S = there_S & (end_S <= row)
        sequence = tl.minimum(tl.sum(before_S.to(tl.int32), 0), num_sequences - 1)
        start, live = tl.max(tl.where(before_S, end_S, 0), 0), row < tl.max(end_S, 0)
    else:
        end_S = tl.minimum(sequence_S + 1, num_live)
        sequence, start, live = tl.where(row < num_live, row, num_sequences - 1), row, row < num_live
    if row == 0:
        tl.store(checked_ptr + sequence_S, checked_S, mask=there_S)
        tl.store(row_starts_ptr + 1 + sequence_S, end_S, mask=there_S)
        tl.store(row_starts_ptr, 0)
    return sequence, start, live


@triton.jit
def _tokens(
    row, slot, newest, position, tokens_ptr, drafts_ptr, ngrams_ptr, columns,
    DEPTH: tl.constexpr, PAD: tl.constexpr, NGRAM: tl.constexpr, NGRAMS: tl.constexpr, DRAFTS: tl.constexpr,
):  # fmt: skip
    """The row's token and those before it; a draft is also written behind the newest token, by its own row."""
    back_G = tl.arange(0, NGRAMS)
    asked_G, at_G = back_G < NGRAM, position - back_G
    place_ptr = tokens_ptr + slot.to(tl.int64) * columns + PAD
    token_G = tl.load(place_ptr + at_G, mask=asked_G & (at_G <= newest), other=0)
    if DRAFTS:
        drafted_G = asked_G & (at_G > newest)
        token_G = tl.where(
            drafted_G, tl.load(drafts_ptr + slot * DEPTH + at_G - newest - 1, mask=drafted_G, other=0), token_G
        )
        tl.store(place_ptr + at_G, token_G, mask=drafted_G & (back_G == 0))
    tl.store(ngrams_ptr + row * NGRAM + back_G, token_G, mask=asked_G)


@triton.jit
def _window(row, slot, position, floor, out_ptr, WINDOW: tl.constexpr, WINDOWS: tl.constexpr, RING: tl.constexpr):
    slot_W = tl.arange(0, WINDOWS)
    at_W = position - (WINDOW - 1) + slot_W
    row_W = tl.where(at_W >= floor, slot * RING + tl.maximum(at_W, 0) % RING, -1)
    tl.store(out_ptr + row * WINDOW + slot_W, row_W, mask=slot_W < WINDOW)


@triton.jit
def _rope(row, position, from_ptr, to_ptr, WIDTH: tl.constexpr, WIDTHS: tl.constexpr):
    at = tl.arange(0, WIDTHS)
    tl.store(to_ptr + row * WIDTH + at, tl.load(from_ptr + position * WIDTH + at, mask=at < WIDTH), mask=at < WIDTH)


@triton.jit
def _entry(
    row, sequence, position, write_from, live, tables_ptr, num_columns, rows_ptr, visible_ptr,
    RATIO: tl.constexpr, BLOCK_ENTRIES: tl.constexpr,
):  # fmt: skip
    """Where the entry goes that the row completes, -1 where it completes none; how many entries it may see."""
    entry = position // RATIO
    completes = live & (position % RATIO == RATIO - 1) & (position >= write_from)
    column = entry // BLOCK_ENTRIES
    block = tl.load(tables_ptr + sequence * num_columns + column, mask=completes & (column < num_columns), other=-1)
    tl.store(rows_ptr + row, tl.where(completes, block * BLOCK_ENTRIES + entry % BLOCK_ENTRIES, -1))
    tl.store(visible_ptr + row, tl.where(live, (position + 1) // RATIO, 0))


@triton.jit
def _copy_tables(
    part, plan_ptr, tables_ptr, num_sequences, HEADER: tl.constexpr, BLOCKS: tl.constexpr, NUMBERS: tl.constexpr
):
    """Tables of the step's width, -1 where the plan has none."""
    place = part * NUMBERS + tl.arange(0, NUMBERS)
    sequence, column = place // BLOCKS, place % BLOCKS
    num_live, num_columns = tl.load(plan_ptr), tl.load(plan_ptr + 2)
    sent = (sequence < num_live) & (column < num_columns)
    from_ptr = plan_ptr + HEADER + 4 * num_sequences + sequence * num_columns + column
    tl.store(tables_ptr + place, tl.load(from_ptr, mask=sent, other=-1), mask=sequence < num_sequences)


@triton.jit
def _decode_rows(
    plan_ptr, tokens_ptr, num_tokens_ptr, length_end_ptr, drafts_ptr, won_ptr, plain_rope_ptr, rope_ptr,
    num_rows, num_sequences, columns,
    ngrams_ptr, own_ptr, sequence_ptr, slots_ptr, positions_ptr, tables_ptr, row_starts_ptr, checked_ptr, ring_rows_ptr,
    tail_rows_ptr, partner_ptr, window_ptr, upper_ptr, plain_ropes_ptr, ropes_ptr, pair_ropes_ptr,
    rows1_ptr, visible1_ptr, rows2_ptr, visible2_ptr,
    SEQUENCES: tl.constexpr, DEPTH: tl.constexpr, DRAFTS: tl.constexpr, HEADER: tl.constexpr, BLOCKS: tl.constexpr,
    PAD: tl.constexpr, NGRAM: tl.constexpr, NGRAMS: tl.constexpr, WINDOW: tl.constexpr, WINDOWS: tl.constexpr,
    RING: tl.constexpr, TAIL: tl.constexpr, BLOCK_TOKENS: tl.constexpr, ROPE: tl.constexpr, ROPES: tl.constexpr,
    HAS1: tl.constexpr, HAS2: tl.constexpr, TABLE_NUMBERS: tl.constexpr,
):  # fmt: skip
    """One row a program; the programs behind those copy the tables."""
    wait_for_earlier_launches()
    row = tl.program_id(0)
    if row >= num_rows:
        _copy_tables(row - num_rows, plan_ptr, tables_ptr, num_sequences, HEADER, BLOCKS, TABLE_NUMBERS)
        return
    sequence, start, live = _sequence_of(
        row, plan_ptr, won_ptr, checked_ptr, row_starts_ptr, num_sequences, SEQUENCES, DEPTH, DRAFTS
    )
    of_ptr = plan_ptr + HEADER + sequence
    slot = tl.load(of_ptr)
    newest = tl.minimum(tl.load(num_tokens_ptr + slot), tl.load(length_end_ptr + slot) - 1) - 1
    position = tl.where(live, newest + row - start, 0)
    tl.store(own_ptr + row, row)
    tl.store(sequence_ptr + row, sequence)
    tl.store(slots_ptr + row, slot)
    tl.store(positions_ptr + row, position)
    tl.store(ring_rows_ptr + row, slot * RING + position % RING)
    _tokens(row, slot, newest, position, tokens_ptr, drafts_ptr, ngrams_ptr, columns, DEPTH, PAD, NGRAM, NGRAMS, DRAFTS)
    floor, upper = tl.load(of_ptr + num_sequences), tl.load(of_ptr + 2 * num_sequences)
    _window(row, slot, position, floor, window_ptr, WINDOW, WINDOWS, RING)
    upper_floor = tl.where(position >= upper, tl.maximum(upper, floor), floor)
    _window(row, slot, position, upper_floor, upper_ptr, WINDOW, WINDOWS, RING)
    _rope(row, position, plain_rope_ptr, plain_ropes_ptr, ROPE, ROPES)
    _rope(row, position, rope_ptr, ropes_ptr, ROPE, ROPES)
    write_from, num_columns = tl.load(of_ptr + 3 * num_sequences), tl.load(plan_ptr + 2)
    sent_ptr = plan_ptr + HEADER + 4 * num_sequences
    if HAS1:
        _entry(
            row, sequence, position, write_from, live, sent_ptr, num_columns, rows1_ptr, visible1_ptr, 1, BLOCK_TOKENS
        )
    if HAS2:
        _entry(
            row,
            sequence,
            position,
            write_from,
            live,
            sent_ptr,
            num_columns,
            rows2_ptr,
            visible2_ptr,
            2,
            BLOCK_TOKENS // 2,
        )
        _rope(row, position // 2 * 2, rope_ptr, pair_ropes_ptr, ROPE, ROPES)
        tl.store(tail_rows_ptr + row, slot * TAIL + position % TAIL)
        before = tl.where(row == start, -1 - (slot * TAIL + tl.maximum(position - 1, 0) % TAIL), row - 1)
        tl.store(partner_ptr + row, tl.where(position % 2 == 0, row, before))


def decode_rows(
    plan_X: Tensor, sequences: SequenceTensors, plain_rope_P2F: Tensor, rope_P2F: Tensor, shape: DecodeShape
) -> DecodeNumbers:
    """As the twin; two launches where drafts are checked, else one."""
    _check(plan_X, sequences, plain_rope_P2F, rope_P2F, shape)
    num_sequences, depth, rows = shape.sequences + 1, sequences.drafts_NK.shape[1], shape.rows
    out, won_KS = _empty(plan_X, plain_rope_P2F, shape), None
    drafts = shape.drafts and depth > 0
    if drafts:
        won_KS = rank_drafts(plan_X, sequences, num_sequences, shape.verify_length)
    pairs, singles = out.entries.get(2), out.entries.get(1)
    width = rope_P2F[0].numel()
    _decode_rows[(rows + triton.cdiv(num_sequences * shape.blocks, TABLE_NUMBERS),)](
        plan_X, *sequences[:4], won_KS, plain_rope_P2F, rope_P2F, rows, num_sequences, sequences.tokens_NL.shape[1],
        out.ngram_ids_TG, out.own_T, out.sequence_T, out.slots_T, out.positions_T, out.tables_SB, out.row_starts_S1,
        out.checked_S, out.ring_rows_T, out.tail_rows_T, out.partner_T, out.window_rows_TW, out.upper_window_rows_TW,
        out.plain_rope_T2F, out.rope_T2F, None if pairs is None else pairs.rope_T2F,
        *((None, None) if singles is None else singles[:2]), *((None, None) if pairs is None else pairs[:2]),
        SEQUENCES=triton.next_power_of_2(num_sequences), DEPTH=depth, DRAFTS=drafts, HEADER=HEADER, BLOCKS=shape.blocks,
        PAD=shape.pad, NGRAM=shape.ngram, NGRAMS=triton.next_power_of_2(shape.ngram), WINDOW=shape.window,
        WINDOWS=triton.next_power_of_2(shape.window), RING=shape.ring_slots, TAIL=shape.tail_slots,
        BLOCK_TOKENS=shape.block_tokens, ROPE=width, ROPES=triton.next_power_of_2(width), HAS1=singles is not None,
        HAS2=pairs is not None, TABLE_NUMBERS=TABLE_NUMBERS, num_warps=4, **OVERLAP,
    )  # fmt: skip
    return out


def _empty(plan_X: Tensor, rope_P2F: Tensor, shape: DecodeShape) -> DecodeNumbers:
    rows, count = shape.rows, shape.sequences + 1

    def numbers(*sizes: int) -> Tensor:
        return plan_X.new_empty(sizes)

    def rope() -> Tensor:
        return rope_P2F.new_empty(rows, *rope_P2F.shape[1:])

    plain, compressed = rope(), rope()
    pairs = 2 in shape.ratios
    return DecodeNumbers(
        ngram_ids_TG=numbers(rows, shape.ngram),
        own_T=numbers(rows),
        sequence_T=numbers(rows),
        slots_T=numbers(rows),
        positions_T=numbers(rows),
        slots_S=plan_X[HEADER : HEADER + count],
        tables_SB=numbers(count, shape.blocks),
        row_starts_S1=numbers(count + 1),
        checked_S=numbers(count),
        ring_rows_T=numbers(rows),
        tail_rows_T=numbers(rows) if pairs else None,
        partner_T=numbers(rows) if pairs else None,
        window_rows_TW=numbers(rows, shape.window),
        upper_window_rows_TW=numbers(rows, shape.window),
        plain_rope_T2F=plain,
        rope_T2F=compressed,
        entries={
            ratio: EntryNumbers(numbers(rows), numbers(rows), rope() if ratio == 2 else compressed)
            for ratio in shape.ratios
        },
    )


def _check(
    plan_X: Tensor, sequences: SequenceTensors, plain_rope_P2F: Tensor, rope_P2F: Tensor, shape: DecodeShape
) -> None:
    numbers = (plan_X, *sequences[:4])
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in numbers), (
        "plans and sequences are contiguous int32"
    )
    assert sequences.confidence_NK.dtype == torch.float32 and sequences.confidence_NK.is_contiguous(), (
        "confidences are contiguous float32"
    )
    assert plain_rope_P2F.shape == rope_P2F.shape and plain_rope_P2F.dtype == rope_P2F.dtype, "two tables of one shape"
    assert plain_rope_P2F.is_contiguous() and rope_P2F.is_contiguous(), "tables are contiguous"
    assert set(shape.ratios) <= {1, 2}, "entries are made of one token or two"
