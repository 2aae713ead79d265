"""Times single steps of an idle executor, for the cost curve of speculation. Nobody reads what they leave behind."""

from __future__ import annotations

import numpy as np

from deepinfer.engine.device import StepClocked, run_step
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import Request, SamplingParams, StepPlan

CONTEXT_TOKENS = 256  # of every sequence; longer ones are corrected for while the engine runs
TIMED = SamplingParams(temperature=1.0, seed=0)


class StepTimer:
    """A `speculation.curve_measurement.Measure` of an executor without requests.

    By the executor's own clock: see `StepClocked`.
    """

    def __init__(self, executor: StepClocked, *, max_model_len: int, block_tokens: int, num_blocks: int) -> None:
        state = executor.state
        self._executor, self._state, self._rows_each = executor, state, 1 + state.depth
        self._context = max(1, min(CONTEXT_TOKENS, max_model_len - 2 * self._rows_each))
        needed = -(-(self._context + self._rows_each) // block_tokens)
        self._table = np.arange(needed) % num_blocks

    def __call__(self, rows: int, sequences: int, draft: bool) -> float:
        """Seconds of a step of `rows` rows; see `Measure`."""
        if not sequences:
            return self._forward_s(rows)
        slots = self._enter(sequences)
        plan, started_s = self._plan(slots, 0, draft), self._executor.step_clock()
        run_step(self._executor, plan)
        device_s = self._executor.step_clock() - started_s
        self._leave(slots)
        return device_s

    def _forward_s(self, rows: int) -> float:
        """Rows are shared out as verify rows are: so many a sequence, the last one may have fewer."""
        count = -(-rows // self._rows_each)
        slots = self._enter(min(count, len(self._state.num_tokens)))
        each = -(-rows // len(slots)) - 1
        self._executor.plant_drafts(slots, each)
        plan, started_s = self._plan(slots, rows - len(slots), draft=False), self._executor.step_clock()
        self._executor.run_forward(plan)
        forward_s = self._executor.step_clock() - started_s
        self._leave(slots)
        return forward_s

    def _plan(self, slots: np.ndarray, num_drafts: int, draft: bool) -> StepPlan:
        return decode_plan(slots, np.tile(self._table, (len(slots), 1)), num_drafts=num_drafts, draft=draft)

    def _enter(self, count: int) -> np.ndarray:
        prompt = np.ones(self._context, dtype=np.int64)
        for slot in range(count):
            request = Request(request_id=-1 - slot, prompt_ids=prompt, params=TIMED, seed=slot)
            self._executor.admit(slot, request, self._context + 2 * self._rows_each)
        return np.arange(count)

    def _leave(self, slots: np.ndarray) -> None:
        for slot in slots.tolist():
            self._executor.release(slot)
