"""A model whose every token is a hash of all that its sequence put into the caches, read back through them.

It keeps ids instead of keys: blocks through the block tables, a window ring and a tail of unpaired tokens by state slot. A
wrong block, slot, position, n-gram or a read of freed memory gives another token. `expected_answer` computes the same hash
from the plain list of tokens, without caches and without an engine.
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.decode_state import DecodeState, Resolved
from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.live_rows import expand, live_rows, spread_drafts
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import (
    Drafts,
    Request,
    SampleInput,
    SamplingParams,
    StepInput,
    StepOutput,
    StepPlan,
    TokenLogprobs,
    Verified,
    VerifyLengths,
)
from deepinfer.sampling.params import ParamsError

WINDOW = 4
POISON = -(2**40)
MASK = (1 << 64) - 1


def toy_limits(**changes: object) -> EngineLimits:
    values = {
        "vocab_size": 50,
        "ngram_size": 3,
        "max_model_len": 64,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 24,
        "max_prefill_tokens": 8,
        "num_blocks": 40,
        "block_tokens": 4,
        "eos_token_ids": (0,),
    }
    return EngineLimits(**{**values, **changes})


def mix(*values: int) -> int:
    state = 0x1234567
    for value in values:
        state = ((state ^ (value & MASK)) * 0x9E3779B97F4A7C15) & MASK
        state ^= state >> 31
    return state


def digest(paged: list[int], window: list[int], tail: int, ngram: list[int], key: int, position: int) -> int:
    return mix(len(paged), *paged, len(window), *window, tail, *ngram, key, position)


def expected_token(history: list[int], key: int, vocab_size: int, ngram_size: int) -> int:
    """The token after `history` (position len(history)) of the sequence with `key`."""
    newest = len(history) - 1
    tail = history[newest - 1] if newest % 2 else -7
    ngram = [history[newest - r] if newest >= r else -1 for r in range(ngram_size)]
    return digest(history, history[-WINDOW:], tail, ngram, key, len(history)) % vocab_size


def expected_answer(prompt: list[int], key: int, params: SamplingParams, limits: EngineLimits) -> list[int]:
    history, stops = list(prompt), set(params.stop_token_ids)
    if not params.ignore_eos:
        stops |= set(limits.eos_token_ids)
    end = min(len(prompt) + params.max_tokens, limits.max_model_len)
    while len(history) < end:
        token = expected_token(history, key, limits.vocab_size, limits.ngram_size)
        history.append(token)
        if token in stops and len(history) > len(prompt) + params.min_tokens:
            break
    return history[len(prompt) :]


class ToyExecutor:
    """`acceptance` is the chance that a draft is the right token; wrong ones are the right one plus 1."""

    def __init__(self, limits: EngineLimits, acceptance: float = 0.7) -> None:
        self.limits, self.acceptance = limits, acceptance
        self.times = ExecutorTimes()
        depth = limits.draft_depth
        self.state = DecodeState(limits.max_num_seqs, limits.max_model_len, limits.ngram_size, depth)
        self.ring_slots, self.tail_slots = WINDOW + 1 + depth, 2 + depth
        self.blocks = np.full((limits.num_blocks, limits.block_tokens), POISON, dtype=np.int64)
        self.rings = np.full((limits.max_num_seqs, self.ring_slots), POISON, dtype=np.int64)
        self.tails = np.full((limits.max_num_seqs, self.tail_slots), POISON, dtype=np.int64)
        self.requests: dict[int, Request] = {}
        self.fail_at: dict[int, int] = {}  # key of a sequence → position that gets no token
        self.plans: list[StepPlan] = []
        self.steps: list[StepInput] = []
        self.released: list[int] = []
        self._flying: list[tuple[StepPlan, Resolved, dict[int, int], dict[int, list[TokenLogprobs]]]] = []
        self._outputs: list[StepOutput] = []

    def submit(self, plan: StepPlan) -> None:
        assert not self._flying, "the step before was not sampled"
        resolved = self.state.resolve(plan)
        step = resolved.step
        assert step.token_ids.min() >= 0 and step.positions.min() >= 0
        assert len(set(step.state_slots.tolist())) == len(step.state_slots)
        assert step.num_rows <= self.limits.max_num_batched_tokens
        self.plans.append(plan)
        self.steps.append(step)
        wanted = set(step.sample_rows.tolist())
        digests: dict[int, int] = {}
        prompt_rows: dict[int, list[TokenLogprobs]] = {}
        for s, slot in enumerate(step.state_slots.tolist()):
            rows = range(step.row_starts[s], step.row_starts[s + 1])
            assert len(rows) > 0
            for row in rows:
                self._write(step, row, slot, step.block_tables[s], in_ring=row >= rows.stop - self.ring_slots)
            for row in rows:
                if row in wanted:
                    digests[row] = self._read(step, row, slot, step.block_tables[s])
            self._prompt_logprobs(step, s, slot, rows, prompt_rows)
        self._flying.append((plan, resolved, digests, prompt_rows))

    def _write(self, step: StepInput, row: int, slot: int, table: np.ndarray, *, in_ring: bool) -> None:
        size, position, token = self.limits.block_tokens, int(step.positions[row]), int(step.token_ids[row])
        assert table[position // size] >= 0
        self.blocks[table[position // size], position % size] = token
        if in_ring:
            self.rings[slot, position % self.ring_slots] = token
        if position % 2 == 0:
            self.tails[slot, position % self.tail_slots] = token

    def _read(self, step: StepInput, row: int, slot: int, table: np.ndarray) -> int:
        size, position = self.limits.block_tokens, int(step.positions[row])
        tail = int(self.tails[slot, (position - 1) % self.tail_slots]) if position % 2 else -7
        paged = [int(self.blocks[table[p // size], p % size]) for p in range(position + 1)]
        seen = range(max(0, position - WINDOW + 1), position + 1)
        window = [int(self.rings[slot, p % self.ring_slots]) for p in seen]
        ngram = step.ngram_ids[row].tolist()
        return digest(paged, window, tail, ngram, self.requests[slot].seed, position + 1)

    def _prompt_logprobs(self, step: StepInput, s: int, slot: int, rows: range, found: dict) -> None:
        request = self.requests[slot]
        if request.params.prompt_logprobs is None:
            return
        for row in rows:
            target = int(step.positions[row]) + 1
            if target < len(request.prompt_ids):
                token = int(request.prompt_ids[target])
                found.setdefault(s, []).append(
                    TokenLogprobs(np.array([token]), np.array([-float(target)], np.float32), 1)
                )

    def sample(self, sample: SampleInput) -> None:
        plan, resolved, digests, prompt_rows = self._flying.pop()
        rows, sample_rows = live_rows(resolved, sample)
        verified = Verified(np.zeros(0, np.int64), np.zeros(len(rows.slots), np.int64), np.zeros(len(rows.slots), bool))
        tokens: list[int] = []
        for r, slot in enumerate(rows.slots.tolist()):
            first, last = rows.row_starts[r : r + 2].tolist()
            for index in range(first, last):
                position = int(rows.positions[r]) + index - first
                if self.fail_at.get(self.requests[slot].seed) == position:
                    verified.failed[r], verified.failures[r] = True, f"planted at {position}"
                    break
                tokens.append(digests[int(sample_rows[index])] % self.limits.vocab_size)
                verified.counts[r] += 1
                if self.requests[slot].params.logprobs is not None:
                    row = TokenLogprobs(np.array(tokens[-1:]), np.zeros(1, np.float32), 1)
                    verified.logprobs[len(tokens) - 1] = row
                if index + 1 == last or tokens[-1] != rows.drafts[r, index - first]:
                    break
        verified.token_ids = np.array(tokens, dtype=np.int64)
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        output = expand(verified, sample.alive, resolved.num_checked)
        output.prompt_logprobs = prompt_rows
        output.num_rows = resolved.step.num_rows
        if plan.draft:
            output.drafts = self._draft(rows.slots, sample.alive)
        self._outputs.append(output)

    def _draft(self, slots: np.ndarray, alive: np.ndarray | None) -> Drafts:
        depth, pad = self.state.depth, self.state.pad
        made = Drafts(np.full((len(slots), depth), -1, np.int64), np.zeros((len(slots), depth), np.float32))
        for s, slot in enumerate(slots.tolist()):
            if not self.state.wants_drafts(np.array([slot]))[0]:
                continue
            history = self.state.tokens_NL[slot, pad : pad + self.state.num_tokens[slot]].tolist()
            key = self.requests[slot].seed
            for k in range(depth):
                token = expected_token(history, key, self.limits.vocab_size, self.limits.ngram_size)
                lot = mix(key, len(history), token, k) % 1000 / 1000
                token = token if lot < self.acceptance else (token + 1) % self.limits.vocab_size
                history.append(token)
                made.token_ids[s, k], made.confidence[s, k] = token, mix(key, len(history), 5) % 1000 / 1000
        self.state.keep_drafts(slots, made)
        if alive is None:
            return made
        return spread_drafts(made, np.flatnonzero(alive), len(alive))

    def collect(self) -> StepOutput:
        return self._outputs.pop(0)

    def prepare(self, params: SamplingParams) -> None:
        if "unpreparable" in params.bad_words:
            raise ParamsError(["bad_words cannot be prepared"])

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        assert slot not in self.requests, "a slot was given away twice"
        self.requests[slot] = request
        self.state.admit(slot, request.prompt_ids, length_end)

    def release(self, slot: int) -> None:
        del self.requests[slot]
        self.released.append(slot)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.blocks[blocks] = POISON
        if slot >= 0:
            self.rings[slot] = POISON
            self.tails[slot] = POISON

    def close(self) -> None:
        assert not self.requests


class SomeDrafts:
    """Checks a changing number of drafts, and now and then drafts nothing: a fixed function of the call's number."""

    def __init__(self, seed: int = 3) -> None:
        self.calls, self.seed = 0, seed

    def budget(self, confidence_RK: np.ndarray, other_rows: int) -> tuple[int, bool]:
        self.calls += 1
        lot = mix(self.seed, self.calls)
        return lot % (confidence_RK.size + 2), lot % 7 != 0

    def observe(self, **_: object) -> None:
        pass

    def take_notice(self) -> str:
        return ""


def toy_engine(limits: EngineLimits | None = None, lengths: VerifyLengths | None = None) -> Engine:
    limits = limits or toy_limits()
    if limits.draft_depth and lengths is None:
        lengths = SomeDrafts()
    return Engine(ToyExecutor(limits), limits, lengths=lengths, seed_entropy=5, poison_freed=True)


def run_all(engine: Engine, max_steps: int = 20_000) -> dict[int, tuple[list[int], str, str | None]]:
    """Step to the end; request id → its tokens, finish reason and error."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, tuple[list[int], str, str | None]] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            return ends
        collect(engine.step(), tokens, ends)
    raise AssertionError(f"not through after {max_steps} steps")


def collect(events: list, tokens: dict, ends: dict) -> None:
    for event in events:
        assert event.request_id not in ends, "an event after the end"
        tokens.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish_reason is not None:
            ends[event.request_id] = (tokens[event.request_id], event.finish_reason, event.error)


def assert_empty(engine: Engine) -> None:
    """Everything that sequences held is back."""
    stats = engine.stats()
    assert (stats.blocks_used, stats.slots_used, stats.waiting, stats.prefilling, stats.decoding) == (0, 0, 0, 0, 0)
    assert engine.unfinished == 0 and not engine.executor.requests
    assert not engine._prompt_progress._delivered
    table = engine.scheduler.table
    assert (table.stage == 0).all() and (table.request_id == -1).all() and (table.num_blocks == 0).all()
