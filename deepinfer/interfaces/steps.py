"""One step of the engine, from its plan to its results.

Shapes: T rows of a step · S sequences in it · D of them decoding · C chunks · R sequences that are sampled · E tokens they
get · K drafts · G n-gram slots · B blocks of a sequence. NumPy arrays, owned by their step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class StepPlan:
    """What the host knows of a step when it schedules it, perhaps before the step before it is through.

    S sequences: first D that decode, then C = S - D chunks of prompts. Of a decoding sequence the host says only who it is:
    its newest token, its position and its drafts are the executor's own, as its last step left them. Sampled are all D, then
    the chunks whose `chunk_sampled` is set, in order: the R sequences of a StepOutput.
    """

    slots: np.ndarray  # int64 [S]; all different
    num_decode: int  # D
    block_tables: np.ndarray  # int64 [S, B]; -1 where unused; wide enough for every draft that may be checked
    chunk_starts: np.ndarray  # int64 [C]; first position of each chunk
    chunk_rows: np.ndarray  # int64 [C]
    chunk_tokens: np.ndarray  # int64 [rows of all chunks]
    chunk_sampled: np.ndarray  # bool [C]: the chunk ends at the newest known token
    window_from: np.ndarray  # int64 [S]; no window key before this position exists, in any layer
    upper_from: (
        np.ndarray
    )  # int64 [S]; the same for the layers from the boundary on (bounded replay); at least window_from
    write_from: (
        np.ndarray
    )  # int64 [S]; rows before this position write no compressed entries: they rebuild windows only
    num_drafts: int = 0  # drafts to check in this step, over all decoding sequences, where that many are there
    draft: bool = False  # whether to draft for the next step
    restores: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))  # [n, 2]: slot, snapshot
    snapshots: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 3), dtype=np.int64)
    )  # [n, 3]: sequence, boundary position, snapshot that gets the state as it is before that position

    @property
    def num_chunk_rows(self) -> int:
        return len(self.chunk_tokens)


@dataclass(slots=True)
class StepInput:
    """One forward pass: S sequences, each a run of consecutive new positions; prefill chunks, decode and verify rows alike.

    Rows of a sequence are adjacent and rise in position. Arrays are NumPy and owned by this step.
    """

    token_ids: np.ndarray  # int64 [T]
    positions: np.ndarray  # int64 [T], 0-based in the sequence
    ngram_ids: np.ndarray  # int64 [T, G]; column r is the token at position p - r, -1 before the sequence
    row_starts: np.ndarray  # int64 [S + 1]; sequence s has rows row_starts[s] : row_starts[s + 1]
    state_slots: np.ndarray  # int64 [S]; which ring and tail slot each sequence owns
    block_tables: np.ndarray  # int64 [S, B]; block of tokens b * block_tokens …; -1 where unused
    sample_rows: np.ndarray  # int64 [rows with logits]; rising
    window_from: np.ndarray | None = None  # int64 [S], as in StepPlan; None: all zero
    upper_from: np.ndarray | None = None
    write_from: np.ndarray | None = None
    restores: np.ndarray | None = None  # int64 [n, 2], as in StepPlan; None: none
    snapshots: np.ndarray | None = None  # int64 [n, 3]

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class TokenLogprobs:
    """Log probabilities at one position: the chosen token first, then the best others, most likely first."""

    token_ids: np.ndarray  # int64 [1 + k]
    logprobs: np.ndarray  # float32 [1 + k]
    rank: int  # of the chosen token, 1 = most likely


@dataclass(slots=True)
class SampleInput:
    """What is known of the R sampled sequences of a step only once the step before it is settled."""

    alive: np.ndarray | None = None  # bool [R]; others have ended meanwhile and get no token. None: all alive
    masks: dict[int, np.ndarray] = field(
        default_factory=dict
    )  # r → uint32 [rows, ceil(V / 32)], bit t set: token t is legal. Rows are the sequence's verify rows; fewer rows than
    # there are drafts + 1 say that the next draft is illegal


@dataclass(slots=True)
class VerifyRows:
    """R sequences with 1 + n rows of logits each: the first row decides the token at `positions`, the others check drafts.

    Row i of a sequence is right only where its first i drafts are the tokens that were chosen before it.
    """

    slots: np.ndarray  # int64 [R]
    positions: np.ndarray  # int64 [R]; absolute position of the first token to be decided
    row_starts: np.ndarray  # int64 [R + 1]; rows of the logits
    drafts: np.ndarray  # int64 [R, K]; sequence r checks the first row_starts[r + 1] - row_starts[r] - 1 of them
    masks: dict[int, np.ndarray] = field(default_factory=dict)  # as in SampleInput


@dataclass(slots=True)
class Verified:
    """What R sequences got: accepted drafts and one token after them, E tokens in all, sequence after sequence."""

    token_ids: np.ndarray  # int64 [E]
    counts: np.ndarray  # int64 [R]; tokens of each sequence; 0 only where it failed at its first row
    failed: np.ndarray  # bool [R]: after these tokens the next row gave none
    failures: dict[int, str] = field(default_factory=dict)  # r → why
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index into token_ids → only where asked


@dataclass(slots=True)
class Drafts:
    """Proposals for S sequences, at most K each. Of a sequence, the places after the first -1 are unused."""

    token_ids: np.ndarray  # int64 [S, K]; -1 where nothing is proposed
    confidence: np.ndarray  # float32 [S, K]; chance that the draft is accepted if all before it are; never NaN

    @classmethod
    def none(cls, depth: int) -> Drafts:
        """Of no sequence."""
        return cls(np.zeros((0, depth), np.int64), np.zeros((0, depth), np.float32))


@dataclass(slots=True)
class StepOutput:
    """Results of one step for its R sampled sequences, in the order of its StepPlan."""

    token_ids: np.ndarray  # int64 [E], sequence after sequence
    counts: np.ndarray  # int64 [R]; tokens of each sequence; 0 where it failed at once or was not alive
    failed: np.ndarray  # bool [R]: after its tokens the sequence met a row that gave none
    failures: dict[int, str] = field(default_factory=dict)  # r → why
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # index into token_ids → only where asked
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(
        default_factory=dict
    )  # sequence s of the step → its prompt rows
    num_checked: np.ndarray | None = None  # int64 [R]; drafts that were checked; None: none anywhere
    drafts: Drafts | None = None  # for the next step of the R sequences
    num_rows: int = 0  # rows of the forward pass
    device_s: float = 0.0  # time of the step on the device, all its parts together
