"""A model whose every token is a hash of all that its sequence put into the caches, read back through them.

It keeps ids instead of keys: blocks through the block tables, a window ring and a tail of unpaired tokens by state slot. A
wrong block, slot, position, n-gram or a read of freed memory gives another token. `expected_answer` computes the same hash
from the plain list of tokens, without caches and without an engine.
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.engine import Engine
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.stats import ExecutorTimes
from deepinfer.interfaces import Request, SampleInput, SamplingParams, StepInput, StepOutput, TokenLogprobs
from deepinfer.sampling.params import ParamsError

RING = 5  # slots; one more than the window
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
    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.times = ExecutorTimes()
        self.failures: dict[int, str] = {}
        self.blocks = np.full((limits.num_blocks, limits.block_tokens), POISON, dtype=np.int64)
        self.rings = np.full((limits.max_num_seqs, RING), POISON, dtype=np.int64)
        self.tails = np.full(limits.max_num_seqs, POISON, dtype=np.int64)
        self.requests: dict[int, Request] = {}
        self.fail_at: dict[int, int] = {}  # key of a sequence → position whose row holds a NaN
        self.steps: list[StepInput] = []
        self.released: list[int] = []
        self._digests: dict[int, int] = {}
        self._step: StepInput | None = None
        self._output: StepOutput | None = None
        self._prompt_rows: dict[int, list[TokenLogprobs]] = {}

    def submit(self, step: StepInput) -> None:
        assert self._step is None, "the step before was not sampled"
        assert step.token_ids.min() >= 0 and step.positions.min() >= 0
        assert len(set(step.state_slots.tolist())) == len(step.state_slots)
        assert step.num_rows <= self.limits.max_num_batched_tokens
        self.steps.append(step)
        self._step, self._digests, self._prompt_rows = step, {}, {}
        wanted = set(step.sample_rows.tolist())
        for s, slot in enumerate(step.state_slots.tolist()):
            rows = range(step.row_starts[s], step.row_starts[s + 1])
            assert len(rows) > 0
            for row in rows:
                self._run_row(row, slot, step.block_tables[s], row in wanted)
            self._prompt_logprobs(s, slot, rows)

    def _run_row(self, row: int, slot: int, table: np.ndarray, wanted: bool) -> None:
        step, size = self._step, self.limits.block_tokens
        position, token = int(step.positions[row]), int(step.token_ids[row])
        assert table[position // size] >= 0
        self.blocks[table[position // size], position % size] = token
        self.rings[slot, position % RING] = token
        tail = -7
        if position % 2:
            tail = int(self.tails[slot])
        else:
            self.tails[slot] = token
        if not wanted:
            return
        paged = [int(self.blocks[table[p // size], p % size]) for p in range(position + 1)]
        window = [int(self.rings[slot, p % RING]) for p in range(max(0, position - WINDOW + 1), position + 1)]
        ngram = step.ngram_ids[row].tolist()
        self._digests[row] = digest(paged, window, tail, ngram, self.requests[slot].seed, position + 1)

    def _prompt_logprobs(self, s: int, slot: int, rows: range) -> None:
        request = self.requests[slot]
        if request.params.prompt_logprobs is None:
            return
        found = []
        for row in rows:
            target = int(self._step.positions[row]) + 1
            if target < len(request.prompt_ids):
                token = int(request.prompt_ids[target])
                found.append(TokenLogprobs(np.array([token]), np.array([-float(target)], np.float32), 1))
        if found:
            self._prompt_rows[s] = found

    def sample(self, sample: SampleInput) -> None:
        step, keys = self._step, [self.requests[slot].seed for slot in sample.slots.tolist()]
        assert (step.positions[step.sample_rows] + 1 == sample.positions).all()
        tokens = [self._digests[row] % self.limits.vocab_size for row in step.sample_rows.tolist()]
        failed = [self.fail_at.get(key) == p for key, p in zip(keys, sample.positions.tolist())]
        token_ids = np.where(failed, -1, np.array(tokens, dtype=np.int64)).astype(np.int64)
        self._output = StepOutput(token_ids=token_ids, failed=np.array(failed, dtype=bool))
        self._output.prompt_logprobs = self._prompt_rows
        for row, slot in enumerate(sample.slots.tolist()):
            if self.requests[slot].params.logprobs is not None:
                self._output.logprobs[row] = TokenLogprobs(token_ids[row : row + 1], np.zeros(1, np.float32), 1)
        self._step = None

    def collect(self) -> StepOutput:
        return self._output

    def prepare(self, params: SamplingParams) -> None:
        if "unpreparable" in params.bad_words:
            raise ParamsError(["bad_words cannot be prepared"])

    def admit(self, slot: int, request: Request) -> None:
        assert slot not in self.requests, "a slot was given away twice"
        self.requests[slot] = request

    def release(self, slot: int) -> None:
        del self.requests[slot]
        self.released.append(slot)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self.blocks[blocks] = POISON
        self.rings[slot] = POISON
        self.tails[slot] = POISON

    def close(self) -> None:
        assert not self.requests


def toy_engine(limits: EngineLimits | None = None) -> Engine:
    limits = limits or toy_limits()
    return Engine(ToyExecutor(limits), limits, seed_entropy=5, poison_freed=True)


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
