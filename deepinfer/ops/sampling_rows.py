"""One token for each row of logits: edits, mask, temperature, filters, seeded noise, log probabilities.

Order: bias → repetition, frequency, presence penalty → mask → temperature → top-k → top-p → min-p → argmax(scores + Gumbel
noise). Greedy (a temperature below 1e-5) stops before the temperature and takes the argmax. Ties go to the lowest token id.
Noise is a function of (seed, position, token id, stream) alone, by Philox4x32-10: see `deepinfer.sampling.philox`.

Shapes: R rows · V vocabulary · W = V / 32 words of a mask · M masks · E edited tokens of all rows ·
N columns of log probabilities.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
BROKEN, RULED_OUT = 1, 2  # faults: a NaN, +inf or nothing but -inf in the logits; no token left by edits and mask
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF
_FINE = 1 << 31


@dataclass(frozen=True, kw_only=True)
class SamplingRows:
    """What is asked of each row.

    Off are: top_k 0, top_p 1, min_p 0, repetition 1, frequency and presence 0, num_logprobs -1, mask_row -1. `processed`: log
    probabilities of the distribution that is drawn from (of the edited logits where greedy), else of the logits as given.
    Row r edits tokens `edit_starts[r]` … `edit_starts[r + 1]` of the E, each once: `edit_biases` (-inf rules out) and
    `edit_counts` = 2 · occurrences in the answer + 1 where the prompt holds it. Bit t % 32 of word t // 32 of a mask: token t
    is legal.
    """

    seed_R: Tensor  # int64
    position_R: Tensor  # int64
    temperature_R: Tensor  # float64, like the next five
    top_p_R: Tensor
    min_p_R: Tensor
    repetition_R: Tensor
    frequency_R: Tensor
    presence_R: Tensor
    top_k_R: Tensor  # int32, like all below but edit_biases
    num_logprobs_R: Tensor
    processed_R: Tensor
    mask_row_R: Tensor
    masks_MW: Tensor
    edit_starts_X: Tensor  # R + 1
    edit_ids_E: Tensor
    edit_biases_E: Tensor  # float64
    edit_counts_E: Tensor

    def to(self, device: torch.device | str) -> "SamplingRows":
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class SampledRows(NamedTuple):
    """`token_R` is -1 where `fault_R` is not 0. `kept_R`: tokens that the filters leave, V where there are none.

    Column 0 of the log probabilities is the chosen token, then the best others; `id_RN` is -1 where nothing is asked.
    """

    token_R: Tensor  # int32
    fault_R: Tensor  # int32
    kept_R: Tensor  # int32
    id_RN: Tensor  # int32
    logprob_RN: Tensor  # float32
    rank_R: Tensor  # int32, 1 for the best


def philox_words(seed: Tensor, position: Tensor, counter: Tensor, stream: int) -> Tensor:
    """int64 [4, ...]: the 32-bit words of the block at every (seed, position, counter); the three broadcast."""
    key0, key1 = seed & _LOW, (seed >> 32) & _LOW
    c0, c1, c2 = position & _LOW, (position >> 32) & _LOW, counter & _LOW
    c3 = torch.full_like(c0, stream)
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(_MULTIPLIERS[0], c0), _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high2 ^ c1 ^ key0, low2, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _WEYL[0]) & _LOW, (key1 + _WEYL[1]) & _LOW
    return torch.stack([c0, c1, c2, c3])


def noise_bits(seed: Tensor, position: Tensor, token_ids: Tensor, stream: int) -> Tensor:
    """int64: the 52 random bits at every (seed, position, token id); the three broadcast."""
    coarse = philox_words(seed, position, token_ids >> 3, stream)
    fine = philox_words(seed, position, token_ids >> 1 | _FINE, stream)
    piece, odd = token_ids & 7, (token_ids & 1) == 1
    low, high = (torch.where((piece & 2) == 0, coarse[i], coarse[i + 1]) for i in (0, 2))
    high16 = torch.where(piece < 4, low, high) >> 16 * (piece & 1) & 0xFFFF
    return high16 << 36 | torch.where(odd, fine[2], fine[0]) << 4 | torch.where(odd, fine[3], fine[1]) >> 28


def uniform(bits: Tensor) -> Tensor:
    """float64 from 52 bits: an odd multiple of 2^-53 in (0, 1)."""
    return (2 * bits.double() + 1) * 2.0**-53


def gumbel(bits: Tensor) -> Tensor:
    """float64 noise from 52 bits: -log(-log(u)) of their uniform number u."""
    return -torch.log(-torch.log(uniform(bits)))


def best_of(score_V: Tensor) -> int:
    """The best token, the lowest among equals."""
    return int((score_V == score_V.max()).nonzero()[0, 0])


def edited_logits(logits_V: Tensor, rows: SamplingRows, r: int) -> Tensor:
    """float64 [V]: row r behind its edits and its mask."""
    edited_V = logits_V.double()
    first, end = rows.edit_starts_X[r : r + 2].tolist()
    ids, counts = rows.edit_ids_E[first:end].long(), rows.edit_counts_E[first:end]
    x = edited_V[ids] + rows.edit_biases_E[first:end]
    seen = torch.where(x > 0, x / rows.repetition_R[r], x * rows.repetition_R[r])
    x = torch.where(counts != 0, seen, x)
    times = (counts >> 1).double()
    edited_V = edited_V.index_put((ids,), x - (rows.frequency_R[r] * times + rows.presence_R[r] * (times > 0)))
    if rows.mask_row_R[r] >= 0:
        mask_W = rows.masks_MW[rows.mask_row_R[r]]
        legal_WB = (mask_W.unsqueeze(1) >> torch.arange(32, device=mask_W.device)) & 1
        edited_V = edited_V.masked_fill(legal_WB.flatten()[: len(edited_V)] == 0, -torch.inf)
    return edited_V


def kept_tokens(scores_V: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """bool [V]: exactly k best; the fewest whose share of what is left reaches p; those min_p times as likely as the best."""
    ordered_V, order_V = scores_V.sort(descending=True, stable=True)
    kept_V = ordered_V > -torch.inf
    if top_k > 0:
        kept_V[top_k:] = False
    weight_V = torch.exp(ordered_V - ordered_V[0]).masked_fill(~kept_V, 0)
    if top_p < 1:
        before_V = weight_V.cumsum(0).roll(1)
        before_V[0] = 0
        kept_V &= before_V < top_p * weight_V.sum()
    if min_p > 0:
        kept_V &= weight_V >= min_p
    return torch.empty_like(kept_V).scatter_(0, order_V, kept_V)


def sample_rows(
    logits_RV: Tensor,
    rows: SamplingRows,
    *,
    stream: int = 0,
    columns: int = 0,
    chosen_R: Tensor | None = None,
    kept_XV: Tensor | None = None,
    kept_row_R: Tensor | None = None,
    rounded: bool = False,
) -> SampledRows:
    """All rows in float64. `columns` (0: none) holds the chosen token and up to columns - 1 others.

    `chosen_R` int32: tokens that were chosen already; negative ones are chosen here. `kept_XV`: row r writes what its token is
    drawn from to row `kept_row_R`[r] (int32; None: r): its edited logits, -inf where mask and filters leave nothing; it may be
    the logits. A row with a fault may write nothing. `rounded`: edited logits are rounded to float32 before anything looks at
    them, which is what devices keep.
    """
    num_rows, device = len(logits_RV), logits_RV.device
    assert num_rows == len(rows.seed_R) == len(rows.edit_starts_X) - 1, (
        f"sample_rows was given {num_rows} rows of logits and what is asked of {len(rows.seed_R)}: give one of each a row"
    )
    out = empty_result(num_rows, columns, device)
    for r in range(num_rows):
        fault, edited_V = _edited(logits_RV[r], rows, r, rounded)
        if fault:
            out.fault_R[r] = fault
            continue
        token, kept_V, scores_V = _choose(edited_V, rows, r, stream)
        token = token if chosen_R is None or chosen_R[r] < 0 else int(chosen_R[r])
        out.token_R[r], out.kept_R[r] = token, kept_V.sum() if _is_filtered(rows, r) else len(kept_V)
        wanted = int(rows.num_logprobs_R[r])
        if wanted >= 0 and columns:
            processed = bool(rows.processed_R[r])
            values_V = scores_V.masked_fill(~kept_V, -torch.inf) if processed else logits_RV[r].double()
            _write_logprobs(out, r, torch.log_softmax(values_V, 0), token, min(wanted, columns - 1))
        if kept_XV is not None:
            at = r if kept_row_R is None else int(kept_row_R[r])
            kept_XV[at] = edited_V.masked_fill(~kept_V, -torch.inf)
    return out


def _edited(logits_V: Tensor, rows: SamplingRows, r: int, rounded: bool) -> tuple[int, Tensor]:
    """(fault or 0, row r behind edits and mask)."""
    if not bool(torch.isfinite(logits_V.max())):
        return BROKEN, logits_V
    edited_V = edited_logits(logits_V, rows, r)
    edited_V = edited_V.float().double() if rounded else edited_V
    return (0 if bool(edited_V.max() > -torch.inf) else RULED_OUT), edited_V


def empty_result(num_rows: int, columns: int, device: torch.device) -> SampledRows:
    """A result with nothing chosen yet."""

    def full(value: int, *size: int) -> Tensor:
        return torch.full((num_rows, *size), value, dtype=torch.int32, device=device)

    logprob_RN = torch.full((num_rows, columns), torch.nan, device=device)
    return SampledRows(full(-1), full(0), full(0), full(-1, columns), logprob_RN, full(0))


def accepted_lengths(token_T: Tensor, draft_SD: Tensor, start_X: Tensor) -> Tensor:
    """int32 [S]: tokens that coupled verification gives each sequence: its samples as far as they are the drafts, and one more.

    Rows `start[s]` … `start[s + 1]` of the T samples (-1: failed) belong to sequence s; row d was computed behind draft d - 1.
    """
    rows_S = start_X.diff().unsqueeze(1)
    depth_D = torch.arange(draft_SD.shape[1] + 1, device=token_T.device)
    padded_T = torch.cat([token_T, token_T.new_tensor([-1])])
    token_SD = padded_T[(start_X[:-1].unsqueeze(1) + depth_D).clamp(max=len(token_T)).long()]
    fine_SD = (token_SD >= 0) & (depth_D < rows_S)
    fine_SD[:, 1:] &= token_SD[:, :-1] == draft_SD
    return fine_SD.int().cumprod(1).sum(1, dtype=torch.int32)


def _choose(scores_V: Tensor, rows: SamplingRows, r: int, stream: int) -> tuple[int, Tensor, Tensor]:
    """The token, the tokens kept, and the scores by the temperature."""
    everything_V = torch.ones_like(scores_V, dtype=torch.bool)
    if rows.temperature_R[r] < GREEDY_BELOW:
        return best_of(scores_V), everything_V, scores_V
    scores_V = scores_V / rows.temperature_R[r]
    kept_V = everything_V
    if _is_filtered(rows, r):
        kept_V = kept_tokens(scores_V, int(rows.top_k_R[r]), float(rows.top_p_R[r]), float(rows.min_p_R[r]))
    ids_V = torch.arange(len(scores_V), device=scores_V.device)
    noise_V = gumbel(noise_bits(rows.seed_R[r], rows.position_R[r], ids_V, stream))
    total_V = (scores_V + noise_V).masked_fill(~kept_V, -torch.inf)
    return best_of(total_V), kept_V, scores_V


def _is_filtered(rows: SamplingRows, r: int) -> bool:
    off = rows.top_k_R[r] <= 0 and rows.top_p_R[r] >= 1 and rows.min_p_R[r] <= 0
    return not (off or rows.temperature_R[r] < GREEDY_BELOW)


def _write_logprobs(out: SampledRows, r: int, logprobs_V: Tensor, token: int, count: int) -> None:
    chosen = logprobs_V[token]
    out.rank_R[r] = 1 + (logprobs_V > chosen).sum() + (logprobs_V[:token] == chosen).sum()
    order = logprobs_V.sort(descending=True, stable=True).indices[: count + 1]
    others = order[order != token][:count]
    ids = torch.cat([others.new_tensor([token]), others])
    out.id_RN[r, : len(ids)] = ids.int()
    out.logprob_RN[r, : len(ids)] = logprobs_V[ids].float()


def _product(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a product of two 32-bit numbers, which may exceed 63 bits."""
    low, high = multiplier * (word & 0xFFFF), multiplier * (word >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
