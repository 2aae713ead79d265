"""Rejection sampling of drafts on a GPU, without a way back to the host. Twin: deepinfer/ops/draft_judgement.py.

A row's vocabulary is cut into parts, a program each: sums of weights, then the best token in a rejected draft's place. A third
launch takes the best of all parts. Every sum has one order, so a row's bits depend on that row alone.

Legend: T rows · V vocabulary · S sequences · K drafts · J = S · K places of drafts · C parts of a row · M proposals · X starts.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.ops.draft_judgement import ACCEPT, RESIDUAL
from deepinfer.ops.sampling_rows import SamplingRows

PART, BLOCK = 8192, 1024  # tokens of a program, and of one of its turns
_FINE = tl.constexpr(1 << 31)  # token counters from here on are those of low bits, see deepinfer/sampling/philox.py


def judge_drafts(
    token_T: Tensor,
    kept_TV: Tensor,
    rows: SamplingRows,
    draft_SK: Tensor,
    start_X: Tensor,
    slot_S: Tensor,
    proposed_MV: Tensor | None,
) -> None:
    """As the twin. Logits float32."""
    (sequences, depth), vocabulary = draft_SK.shape, kept_TV.shape[1]
    whole = token_T, draft_SK, start_X, slot_S
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in whole), "whole numbers are contiguous int32"
    certain = proposed_MV is None
    wide = kept_TV, kept_TV if proposed_MV is None else proposed_MV
    assert all(x.dtype == torch.float32 and x.is_contiguous() for x in wide), "logits are contiguous float32"
    assert wide[1].shape[1] == vocabulary, "drafts and rows have one vocabulary"
    places, parts = sequences * depth, triton.cdiv(vocabulary, PART)
    if not places:
        return
    sums_JC4 = torch.empty(places, parts, 4, dtype=torch.float64, device=token_T.device)
    best_JC2 = torch.empty(places, parts, 2, dtype=torch.float64, device=token_T.device)
    id_JC2 = torch.empty(places, parts, 2, dtype=torch.int32, device=token_T.device)
    asked = token_T, rows.temperature_R, draft_SK, start_X, slot_S
    shape = {"DEPTH": depth, "PARTS": parts, "PADDED": triton.next_power_of_2(parts)}
    cut = {"CERTAIN": certain, "PART": PART, "BLOCK": BLOCK, "num_warps": 4}
    _weigh[(places, parts)](*asked, *wide, sums_JC4, vocabulary, DEPTH=depth, **cut)
    noise = rows.seed_R, rows.position_R
    _race[(places, parts)](
        *asked, *wide, *noise, sums_JC4, best_JC2, id_JC2, vocabulary, ACCEPT=ACCEPT, RESIDUAL=RESIDUAL, **shape, **cut
    )
    _choose[(places,)](*asked, best_JC2, id_JC2, **shape, num_warps=1)


@triton.jit
def _place(tokens, temperatures, drafts, starts, slots, place, DEPTH: tl.constexpr):
    """(whether this draft is judged, its row, its token, its proposal, the temperature)"""
    s, d = place // DEPTH, place % DEPTH
    first = tl.load(starts + s)
    there = first + d + 1 < tl.load(starts + s + 1)
    row = tl.where(there, first + d, 0)
    draft = tl.load(drafts + place)
    temperature = tl.load(temperatures + row, mask=there, other=0.0)
    token = tl.load(tokens + row, mask=there, other=-1)
    judged = there & (token >= 0) & (draft >= 0) & (temperature >= 1e-5)
    return judged, row, draft, tl.load(slots + s) * DEPTH + d, temperature


@triton.jit
def _weigh(
    tokens, temperatures, drafts, starts, slots, kept, proposed, sums, vocabulary,
    DEPTH: tl.constexpr, CERTAIN: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a part of p and q each: the largest logit, and the sum of weights under it."""
    place, part = tl.program_id(0), tl.program_id(1)
    judged, row, _draft, proposal, temperature = _place(tokens, temperatures, drafts, starts, slots, place, DEPTH)
    if judged:
        to = sums + (place * tl.num_programs(1) + part) * 4
        p_V, q_V = kept + row.to(tl.int64) * vocabulary, proposed + proposal.to(tl.int64) * vocabulary
        top_p, sum_p = _part_sum(p_V, part, vocabulary, temperature, PART, BLOCK)
        tl.store(to, top_p)
        tl.store(to + 1, sum_p)
        if not CERTAIN:
            top_q, sum_q = _part_sum(q_V, part, vocabulary, temperature, PART, BLOCK)
            tl.store(to + 2, top_q)
            tl.store(to + 3, sum_q)


@triton.jit
def _part_sum(x_V, part, vocabulary, temperature, PART: tl.constexpr, BLOCK: tl.constexpr):
    at_B, top_B = tl.arange(0, BLOCK), tl.full((BLOCK,), float("-inf"), tl.float32)
    for turn in range(0, PART, BLOCK):
        id_B = part * PART + turn + at_B
        top_B = tl.maximum(top_B, tl.load(x_V + id_B, mask=id_B < vocabulary, other=float("-inf")))
    top = tl.max(top_B, 0).to(tl.float64)
    under = tl.where(top > float("-inf"), top, 0.0)
    sum_B = tl.zeros((BLOCK,), tl.float64)
    for turn in range(0, PART, BLOCK):
        id_B = part * PART + turn + at_B
        x_B = tl.load(x_V + id_B, mask=id_B < vocabulary, other=float("-inf")).to(tl.float64)
        sum_B += tl.exp((x_B - under) / temperature)
    return top, tl.sum(sum_B, 0)


@triton.jit
def _whole_sum(sums, place, which, temperature, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """The largest logit of a row, and the sum of all weights under it."""
    at_C = tl.arange(0, PADDED)
    there_C = at_C < PARTS
    from_C = sums + (place * PARTS + at_C) * 4 + which
    top_C = tl.load(from_C, mask=there_C, other=float("-inf"))
    sum_C = tl.load(from_C + 1, mask=there_C, other=0.0)
    top = tl.max(top_C, 0)
    return top, tl.sum(tl.where(sum_C > 0, sum_C * tl.exp((top_C - top) / temperature), 0.0), 0)


@triton.jit
def _noise_bits(seed, position, id_B, STREAM: tl.constexpr):
    """uint64: the 52 bits of noise of tokens."""
    none_B = (id_B * 0).to(tl.uint32)
    low_B, high_B = none_B + position.to(tl.uint32), none_B + (position >> 32).to(tl.uint32)
    token_B, stream_B = id_B.to(tl.uint32), none_B + STREAM
    a0, a1, a2, a3 = tl.philox(seed, low_B, high_B, token_B >> 3, stream_B)
    f0, f1, f2, f3 = tl.philox(seed, low_B, high_B, (token_B >> 1) | _FINE, stream_B)
    piece_B, odd_B = token_B & 7, (token_B & 1) == 1
    word_B = tl.where(piece_B < 4, tl.where(piece_B < 2, a0, a1), tl.where(piece_B < 6, a2, a3))
    high16_B = ((word_B >> (16 * (piece_B & 1))) & 0xFFFF).to(tl.uint64)
    first_B, second_B = tl.where(odd_B, f2, f0).to(tl.uint64), tl.where(odd_B, f3, f1).to(tl.uint64)
    return (high16_B << 36) | (first_B << 4) | (second_B >> 28)


@triton.jit
def _uniform(bits_B):
    return (2.0 * bits_B.to(tl.float64) + 1.0) * 1.1102230246251565e-16  # 2^-53


@triton.jit
def _race(
    tokens, temperatures, drafts, starts, slots, kept, proposed, seeds, positions, sums, bests, ids, vocabulary,
    ACCEPT: tl.constexpr, RESIDUAL: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr,
    CERTAIN: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a part of a rejected row: the best of max(p - q, 0), and of p. First id -1: the draft is accepted; -2: none."""
    place, part = tl.program_id(0), tl.program_id(1)
    judged, row, draft, proposal, temperature = _place(tokens, temperatures, drafts, starts, slots, place, DEPTH)
    if judged:
        to = (place * PARTS + part) * 2
        p_V, q_V = kept + row.to(tl.int64) * vocabulary, proposed + proposal.to(tl.int64) * vocabulary
        top_p, sum_p = _whole_sum(sums, place, 0, temperature, PARTS, PADDED)
        top_q, sum_q = 0.0, 1.0
        if not CERTAIN:
            top_q, sum_q = _whole_sum(sums, place, 2, temperature, PARTS, PADDED)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        p = tl.exp((tl.load(p_V + draft).to(tl.float64) - top_p) / temperature) / sum_p
        q = 1.0
        if not CERTAIN:
            q = tl.exp((tl.load(q_V + draft).to(tl.float64) - top_q) / temperature) / sum_q
        coin = tl.max(_uniform(_noise_bits(seed, position, tl.zeros((1,), tl.int32), ACCEPT)), 0)
        if coin < p / q:
            tl.store(ids + to, -1)
        else:
            at_B = tl.arange(0, BLOCK)
            rest_B = tl.full((BLOCK,), float("-inf"), tl.float64)
            whole_B = rest_B
            rest_id_B, whole_id_B = at_B * 0 - 2, at_B * 0 - 2
            for turn in range(0, PART, BLOCK):
                id_B = part * PART + turn + at_B
                there_B = id_B < vocabulary
                x_B = tl.load(p_V + id_B, mask=there_B, other=float("-inf")).to(tl.float64)
                p_B = tl.exp((x_B - top_p) / temperature) / sum_p
                if CERTAIN:
                    left_B = tl.where(id_B == draft, 0.0, p_B)
                else:
                    y_B = tl.load(q_V + id_B, mask=there_B, other=float("-inf")).to(tl.float64)
                    left_B = p_B - tl.exp((y_B - top_q) / temperature) / sum_q
                noise_B = -tl.log(-tl.log(_uniform(_noise_bits(seed, position, id_B, RESIDUAL))))
                of_rest_B = tl.where(left_B > 0, tl.log(tl.where(left_B > 0, left_B, 1.0)) + noise_B, float("-inf"))
                of_whole_B = tl.where(p_B > 0, tl.log(tl.where(p_B > 0, p_B, 1.0)) + noise_B, float("-inf"))
                rest_id_B = tl.where(of_rest_B > rest_B, id_B, rest_id_B)
                whole_id_B = tl.where(of_whole_B > whole_B, id_B, whole_id_B)
                rest_B, whole_B = tl.maximum(rest_B, of_rest_B), tl.maximum(whole_B, of_whole_B)
            rest, whole = tl.max(rest_B, 0), tl.max(whole_B, 0)
            tl.store(bests + to, rest)
            tl.store(bests + to + 1, whole)
            tl.store(ids + to, _lowest(rest_B == rest, rest_id_B))
            tl.store(ids + to + 1, _lowest(whole_B == whole, whole_id_B))


@triton.jit
def _lowest(best_B, id_B):
    """The lowest id among the best, -2 where there is none."""
    found = tl.min(tl.where(best_B & (id_B >= 0), id_B, 2147483647), 0)
    return tl.where(found == 2147483647, -2, found)


@triton.jit
def _choose(
    tokens, temperatures, drafts, starts, slots, bests, ids, DEPTH: tl.constexpr, PARTS: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0)
    judged, row, draft, _proposal, _temperature = _place(tokens, temperatures, drafts, starts, slots, place, DEPTH)
    if judged:
        at_C = tl.arange(0, PADDED)
        there_C, from_C = at_C < PARTS, (place * PARTS + at_C) * 2
        rest_id_C = tl.load(ids + from_C, mask=there_C, other=-2)
        token = draft
        if tl.min(tl.where(rest_id_C == -1, -1, 0), 0) == 0:
            whole_id_C = tl.load(ids + from_C + 1, mask=there_C, other=-2)
            rest_C = tl.where(rest_id_C >= 0, tl.load(bests + from_C, mask=there_C, other=0.0), float("-inf"))
            whole_C = tl.where(whole_id_C >= 0, tl.load(bests + from_C + 1, mask=there_C, other=0.0), float("-inf"))
            rest = _lowest(rest_C == tl.max(rest_C, 0), rest_id_C)
            whole = _lowest(whole_C == tl.max(whole_C, 0), whole_id_C)
            token = tl.where(rest >= 0, rest, tl.where(whole >= 0, whole, tl.load(tokens + row)))
        tl.store(tokens + row, token)
