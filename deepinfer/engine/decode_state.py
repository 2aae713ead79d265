"""What a device remembers of the sequences it runs: their tokens, their newest length, their drafts.

A step that is scheduled before the one before it is through cannot say which tokens it starts from. So the host says who
runs (StepPlan), and this state, which only the executor writes, turns that into the rows of a forward pass.

N slots · L tokens · K drafts · D decoding · C chunks · S sequences · R sampled ones · T rows · G n-gram columns · E tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepinfer.interfaces import Drafts, StepInput, StepPlan, Verified, VerifyRows
from deepinfer.speculation.allocation import allocate

NO_TOKEN = -1


@dataclass(slots=True)
class Resolved:
    """A plan with nothing left open."""

    step: StepInput
    rows: VerifyRows
    num_checked: np.ndarray  # int64 [R]; drafts in the rows of each sampled sequence
    num_decode_rows: int


class DecodeState:
    """Arrays by state slot. `depth` 0 is a device without a drafter; at most `verify_length` drafts are checked at a time."""

    def __init__(
        self, num_slots: int, max_model_len: int, ngram_size: int, depth: int = 0, verify_length: int | None = None
    ) -> None:
        self.pad = ngram_size - 1  # columns of -1 before position 0, as in the host's table
        self.depth = depth
        self._verify_length = depth if verify_length is None else verify_length
        self._stride = self.pad + max_model_len
        self._back_G = np.arange(ngram_size)
        self.tokens_NL = np.zeros((num_slots, self._stride), dtype=np.int32)
        self.tokens_NL[:, : self.pad] = NO_TOKEN
        self._flat_tokens = self.tokens_NL.reshape(-1)
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)
        self.length_end = np.zeros(num_slots, dtype=np.int64)
        self.drafts_NK = np.full((num_slots, depth), NO_TOKEN, dtype=np.int64)
        self.confidence_NK = np.zeros((num_slots, depth), dtype=np.float32)

    def admit(self, slot: int, prompt_ids: np.ndarray, length_end: int) -> None:
        """A sequence enters `slot`; nothing of it is computed yet."""
        self.tokens_NL[slot, self.pad : self.pad + len(prompt_ids)] = prompt_ids
        self.num_tokens[slot] = len(prompt_ids)
        self.length_end[slot] = length_end
        self.drafts_NK[slot] = NO_TOKEN

    def resolve(self, plan: StepPlan) -> Resolved:
        """Rows of `plan`: each decoding sequence's newest token with the drafts that it may check, then the chunks."""
        decode, chunks = plan.slots[: plan.num_decode], plan.slots[plan.num_decode :]
        lengths_D = self._hand_out(decode, plan.num_drafts)
        # A sequence that reached its end in the step before runs its last row once more; the host drops what comes of it.
        starts_D = np.minimum(self.num_tokens[decode], self.length_end[decode] - 1) - 1
        if len(chunks):
            places = self._places(chunks, plan.chunk_starts, plan.chunk_rows)
            self._flat_tokens[places] = plan.chunk_tokens
            self.num_tokens[chunks] = plan.chunk_starts + plan.chunk_rows
            self.drafts_NK[chunks] = NO_TOKEN
        num_rows_S = np.concatenate([lengths_D + 1, plan.chunk_rows])
        starts_S = np.concatenate([starts_D, plan.chunk_starts])
        row_starts = np.zeros(len(num_rows_S) + 1, dtype=np.int64)
        np.cumsum(num_rows_S, out=row_starts[1:])
        if row_starts[-1] == len(num_rows_S):  # one row each: the steady state without drafts
            positions, row_slots = starts_S, plan.slots
        else:
            positions = np.arange(row_starts[-1]) + np.repeat(starts_S - row_starts[:-1], num_rows_S)
            row_slots = np.repeat(plan.slots, num_rows_S)
        places = row_slots * self._stride + positions + self.pad
        ngram_ids = self._flat_tokens[places[:, None] - self._back_G].astype(np.int64)
        num_decode_rows = int(row_starts[plan.num_decode])
        last_rows = row_starts[plan.num_decode + 1 :][plan.chunk_sampled] - 1
        step = StepInput(
            token_ids=ngram_ids[:, 0].copy(),
            positions=positions,
            ngram_ids=ngram_ids,
            row_starts=row_starts,
            state_slots=plan.slots,
            block_tables=plan.block_tables,
            sample_rows=np.concatenate([np.arange(num_decode_rows), last_rows]),
            window_from=plan.window_from,
            upper_from=plan.upper_from,
            write_from=plan.write_from,
            restores=plan.restores,
            snapshots=_within_reach(plan.snapshots, starts_S, num_rows_S),
        )
        assert step.token_ids.min() >= 0, "a place without a token was scheduled"
        slots = np.concatenate([decode, chunks[plan.chunk_sampled]])
        checked = np.concatenate([lengths_D, np.zeros(len(last_rows), dtype=np.int64)])
        logit_starts = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(checked + 1, out=logit_starts[1:])
        rows = VerifyRows(slots, self.num_tokens[slots], logit_starts, self.drafts_NK[slots])
        return Resolved(step, rows, checked, num_decode_rows)

    def append(self, slots: np.ndarray, token_ids: np.ndarray, counts: np.ndarray) -> None:
        """`counts` [R] tokens go to the ends of `slots` [R]; the drafts that stood there are gone."""
        self._flat_tokens[self._places(slots, self.num_tokens[slots], counts)] = token_ids
        self.num_tokens[slots] += counts
        self.drafts_NK[slots] = NO_TOKEN
        assert (self.num_tokens[slots] <= self.length_end[slots]).all(), "tokens beyond the end of a sequence"

    def keep_drafts(self, slots: np.ndarray, drafts: Drafts) -> None:
        """What the next step may check for `slots` [S]."""
        self.drafts_NK[slots] = drafts.token_ids
        self.confidence_NK[slots] = drafts.confidence

    def forget_drafts(self, slots: np.ndarray) -> None:
        """None of `slots` has drafts any more."""
        self.drafts_NK[slots] = NO_TOKEN

    def plant_drafts(self, slots: np.ndarray, number: int) -> Drafts:
        """`number` drafts for each of `slots`, of any token and all as likely, for steps that are only timed."""
        made = Drafts(np.full((len(slots), self.depth), NO_TOKEN), np.full((len(slots), self.depth), 0.5, np.float32))
        made.token_ids[:, :number] = 1
        self.keep_drafts(slots, made)
        return made

    def wants_drafts(self, slots: np.ndarray) -> np.ndarray:
        """bool: the sequence may get more than one token before it ends."""
        return self.num_tokens[slots] + 1 < self.length_end[slots]

    def goes_on(self, slots: np.ndarray, verified: Verified) -> np.ndarray:
        """bool [R]: which of the sequences in `slots`, whose tokens were appended, are to be drafted for."""
        return (verified.counts > 0) & ~verified.failed & self.wants_drafts(slots)

    def _hand_out(self, decode: np.ndarray, num_drafts: int) -> np.ndarray:
        """Drafts that each decoding sequence checks, int64 [D]; they are put behind its newest token."""
        if not num_drafts or not len(decode):
            return np.zeros(len(decode), dtype=np.int64)
        drafts_DK = self.drafts_NK[decode]
        unused_DK = drafts_DK < 0
        available_D = np.where(unused_DK.any(axis=1), unused_DK.argmax(axis=1), self.depth)
        room_D = self.length_end[decode] - self.num_tokens[decode] - 1
        available_D = np.minimum(np.minimum(available_D, room_D), self._verify_length).clip(min=0)
        lengths_D = allocate(self.confidence_NK[decode], available_D, num_drafts)
        places = self._places(decode, self.num_tokens[decode], lengths_D)
        self._flat_tokens[places] = drafts_DK[np.arange(self.depth) < lengths_D[:, None]]
        return lengths_D

    def _places(self, slots: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Where `counts` tokens from position `starts` on lie in the flat array."""
        first = slots * self._stride + starts + self.pad
        ends = np.cumsum(counts)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - counts), counts)


def _within_reach(snapshots: np.ndarray, starts_S: np.ndarray, num_rows_S: np.ndarray) -> np.ndarray:
    """Those whose boundary the rows of their sequence come to: of a running answer the host knew only where it may be."""
    if not len(snapshots):
        return snapshots
    starts, boundaries = starts_S[snapshots[:, 0]], snapshots[:, 1]
    return snapshots[(starts <= boundaries) & (boundaries <= starts + num_rows_S[snapshots[:, 0]])]
