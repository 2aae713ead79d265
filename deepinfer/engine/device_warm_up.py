"""Prompts and a few decode steps of requests that nobody sent, so that kernels are compiled before the first real one.

Where steps are graphs, those with chunks are captured for all numbers of rows with the narrowest block tables, and answers are
run in batches of a few sizes: the first requests wait for no capture while their sequences fit such tables.
"""

from __future__ import annotations

import time

import numpy as np

from deepinfer.engine.device import StepClocked, run_step
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import Request, SamplingParams, StepPlan

PROMPT_ROWS = 4  # even and odd positions, and a chunk longer than one row
DECODE_STEPS = 2
BATCHES = (1, 2, 4, 8, 16)  # sequences
ASKED = SamplingParams(temperature=1.0, seed=0)


def warm_up(executor: DeviceExecutor, limits: EngineLimits, steps: StepClocked | None = None) -> float:
    """Seconds that it took. It leaves nothing behind that a request reads. `steps`: the executor in step with other ranks, all
    of which do the same."""
    started_s = time.perf_counter()
    if executor.company is not None:
        executor.company.connect()
        executor.company.capture(executor.lanes.chunk_sizes)
    executor.lanes.capture_chunks()
    batches = BATCHES if executor.lanes.chunks is not None else BATCHES[:1]
    for count in batches:
        if count <= limits.max_num_seqs and count * PROMPT_ROWS <= max(PROMPT_ROWS, limits.max_num_batched_tokens):
            _run(executor, steps or executor, np.arange(count), limits)
    executor.forget_times()
    return time.perf_counter() - started_s


def _run(executor: DeviceExecutor, steps: StepClocked, slots: np.ndarray, limits: EngineLimits) -> None:
    """The same short prompt in all `slots`, and the first tokens of its answers; drafts where the engine makes any."""
    rows = min(PROMPT_ROWS, limits.max_model_len - 1)
    length_end = min(limits.max_model_len, rows + DECODE_STEPS * (1 + limits.draft_depth) + 1)
    request = Request(request_id=-1, prompt_ids=np.ones(rows, dtype=np.int64), params=ASKED, seed=0)
    for slot in slots.tolist():
        executor.admit(slot, request, length_end)
    tables = np.zeros((len(slots), limits.blocks_for(length_end)), dtype=np.int64)
    run_step(steps, _prompts(slots, tables, rows, draft=limits.draft_depth > 0))
    num_drafts = len(slots) * limits.draft_depth
    for _ in range(DECODE_STEPS):
        if (executor.state.num_tokens[slots] < length_end).all():
            run_step(steps, decode_plan(slots, tables, num_drafts=num_drafts, draft=num_drafts > 0))
    for slot in slots.tolist():
        executor.release(slot)


def _prompts(slots: np.ndarray, tables: np.ndarray, rows: int, *, draft: bool) -> StepPlan:
    zeros = np.zeros(len(slots), dtype=np.int64)
    return StepPlan(
        slots=slots,
        num_decode=0,
        block_tables=tables,
        chunk_starts=zeros,
        chunk_rows=zeros + rows,
        chunk_tokens=np.ones(len(slots) * rows, dtype=np.int64),
        chunk_sampled=np.ones(len(slots), dtype=bool),
        window_from=zeros,
        upper_from=zeros,
        write_from=zeros,
        draft=draft,
    )
