"""A device that does nothing for a given time: the real engine runs on it, only the forward pass is replaced.

Tokens are a fixed function of the sequence's key, the position and the tokens before it, so runs can be compared. Drafts are
the true tokens, each replaced by a wrong one with a given chance, a fixed function as well.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from deepinfer.engine.clocks import Clock, VirtualClock
from deepinfer.engine.decode_state import DecodeState, Resolved
from deepinfer.engine.live_rows import expand, live_rows, spread_drafts
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import (
    Drafts,
    Request,
    SampleInput,
    SamplingParams,
    StepOutput,
    StepPlan,
    Verified,
    VerifyRows,
)
from deepinfer.sampling.params import ParamsError

_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


class SimulatedExecutor:
    """Every step takes `step_time_s` on `clock`, one after another; a draft is right with chance `acceptance`.

    The clock runs from the submission of a step, or from the end of the one before it where that is later. `idle_s` is the
    time in between, in which the device had nothing to do.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        state: DecodeState,
        step_time_s: float = 0.0,
        acceptance: float = 0.8,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.times = ExecutorTimes()
        self.state = state
        self.busy_s = self.idle_s = 0.0
        self._vocab_size = np.uint64(vocab_size)
        self._step_time_s, self._acceptance = step_time_s, acceptance
        self._keys = np.zeros(len(state.num_tokens), dtype=np.uint64)
        self._submitted: deque[tuple[StepPlan, Resolved]] = deque()
        self._sampled: deque[tuple[StepOutput, float]] = deque()
        self._busy_until_s: float | None = None

    def submit(self, plan: StepPlan) -> None:
        now_s = self.clock.now()
        begins_s = now_s if self._busy_until_s is None else max(now_s, self._busy_until_s)
        if self._busy_until_s is not None:
            self.idle_s += begins_s - self._busy_until_s
        self.busy_s += self._step_time_s
        self._busy_until_s = begins_s + self._step_time_s
        self._submitted.append((plan, self.state.resolve(plan)))

    def sample(self, sample: SampleInput) -> None:
        plan, resolved = self._submitted.popleft()
        assert self._busy_until_s is not None
        now_s = self.clock.now()
        if now_s > self._busy_until_s:  # the forward pass is through and waited for this call
            self.idle_s += now_s - self._busy_until_s
            self._busy_until_s = now_s
        rows, sample_rows = live_rows(resolved, sample)
        step = resolved.step
        verified = self._verify(rows, step.ngram_ids[sample_rows])
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        output = expand(verified, sample.alive, resolved.num_checked)
        if plan.draft:
            output.drafts = self._draft(rows, sample.alive)
        output.num_rows, output.device_s = step.num_rows, self._step_time_s
        self._sampled.append((output, self._busy_until_s))

    def collect(self) -> StepOutput:
        output, ready_s = self._sampled.popleft()
        self.clock.wait_until(ready_s)
        self.times.model_s += self._step_time_s
        return output

    def prepare(self, params: SamplingParams) -> None:
        """See `check_simulated`."""
        check_simulated(params)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        self._keys[slot] = request.seed
        self.state.admit(slot, request.prompt_ids, length_end)

    def release(self, slot: int) -> None:
        self._keys[slot] = 0

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        """There is no memory to fill."""

    def close(self) -> None:
        self._submitted.clear()
        self._sampled.clear()

    def _verify(self, rows: VerifyRows, ngram_ids: np.ndarray) -> Verified:
        num_rows = np.diff(rows.row_starts)
        owners = np.repeat(np.arange(len(num_rows)), num_rows)
        offsets = np.arange(len(owners)) - rows.row_starts[owners]
        tokens = self._tokens(rows.slots[owners], rows.positions[owners] + offsets, ngram_ids[:, 0], _older(ngram_ids))
        if len(tokens) == len(num_rows):
            return Verified(tokens, num_rows, np.zeros(len(num_rows), dtype=bool))
        wrong = np.ones(len(tokens), dtype=bool)  # rows whose token is not the draft after it; the last row has none
        checks = offsets < num_rows[owners] - 1
        wrong[checks] = tokens[checks] != rows.drafts[owners[checks], offsets[checks]]
        counts = np.minimum.reduceat(np.where(wrong, offsets, num_rows[owners]), rows.row_starts[:-1]) + 1
        return Verified(tokens[offsets < counts[owners]], counts, np.zeros(len(counts), dtype=bool))

    def _draft(self, rows: VerifyRows, alive: np.ndarray | None) -> Drafts:
        slots, depth = rows.slots, self.state.depth
        ends = self.state.num_tokens[slots]
        newest = self.state.tokens_NL[slots, self.state.pad + ends - 1].astype(np.int64)
        older = self.state.tokens_NL[slots, self.state.pad + ends - 2].astype(np.int64) if self.state.pad else newest
        drafts = np.empty((len(slots), depth), dtype=np.int64)
        for k in range(depth):
            newest, older = self._tokens(slots, ends + k, newest, older), newest
            lots = self._mixed(slots, ends + k, newest, older) >> np.uint64(40)
            wrong = lots.astype(np.float64) / 2**24 >= self._acceptance
            newest = np.where(wrong, (newest + 1) % int(self._vocab_size), newest)
            drafts[:, k] = newest
        made = Drafts(drafts, np.full(drafts.shape, self._acceptance, dtype=np.float32))
        self.state.keep_drafts(slots, made)
        if alive is None:
            return made
        return spread_drafts(made, np.flatnonzero(alive), len(alive))

    def _tokens(self, slots: np.ndarray, positions: np.ndarray, newest: np.ndarray, older: np.ndarray) -> np.ndarray:
        """The token at each of `positions`, after two tokens."""
        mixed = self._mixed(slots, positions, newest, older)
        return ((mixed ^ (mixed >> np.uint64(29))) % self._vocab_size).astype(np.int64)

    def _mixed(self, slots: np.ndarray, positions: np.ndarray, newest: np.ndarray, older: np.ndarray) -> np.ndarray:
        mixed = (self._keys[slots] + positions.astype(np.uint64)) * _FACTORS[0] + newest.astype(np.uint64) * _FACTORS[1]
        return mixed + older.astype(np.uint64) * _FACTORS[2] if self.state.pad else mixed


def _older(ngram_ids: np.ndarray) -> np.ndarray:
    return ngram_ids[:, 1] if ngram_ids.shape[1] > 1 else ngram_ids[:, 0]


def check_simulated(params: SamplingParams) -> None:
    """Tokens are invented whatever the parameters are; raises ParamsError for what comes of probabilities."""
    asked = {name: getattr(params, name) for name in ("logprobs", "prompt_logprobs")}
    found = [f"{name}={value}" for name, value in asked.items() if value is not None]
    if found:
        why = "a simulation invents tokens, and there are no probabilities to tell"
        raise ParamsError([f"{' and '.join(found)}: {why}; leave it out, or type executor=local"])
