"""A prompt and a few decode steps of a request that nobody sent, so that kernels are compiled before the first real one."""

from __future__ import annotations

import time

import numpy as np

from deepinfer.engine.device import run_step
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import Request, SamplingParams, StepPlan

PROMPT_ROWS = 4  # even and odd positions, and a chunk longer than one row
DECODE_STEPS = 2
ASKED = SamplingParams(temperature=1.0, seed=0)


def warm_up(executor: DeviceExecutor, limits: EngineLimits) -> float:
    """Seconds that it took. It leaves nothing behind that a request reads."""
    started_s = time.perf_counter()
    prompt = np.ones(min(PROMPT_ROWS, limits.max_model_len - 1), dtype=np.int64)
    request = Request(request_id=-1, prompt_ids=prompt, params=ASKED, seed=0)
    length_end = min(limits.max_model_len, len(prompt) + DECODE_STEPS * (1 + limits.draft_depth) + 1)
    executor.admit(0, request, length_end)
    run_step(executor, _plan(prompt, length_end, limits))
    for _ in range(DECODE_STEPS):
        if executor.state.num_tokens[0] < length_end:
            run_step(executor, _plan(None, length_end, limits))
    executor.release(0)
    executor.forget_times()
    return time.perf_counter() - started_s


def _plan(prompt: np.ndarray | None, length_end: int, limits: EngineLimits) -> StepPlan:
    """The prompt as one chunk, or the decode step behind it; drafts where the engine makes any."""
    nothing, zero = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    chunk = prompt is not None
    return StepPlan(
        slots=zero,
        num_decode=0 if chunk else 1,
        block_tables=np.zeros((1, -(-length_end // limits.block_tokens)), dtype=np.int64),
        chunk_starts=zero if chunk else nothing,
        chunk_rows=np.array([len(prompt)]) if prompt is not None else nothing,
        chunk_tokens=nothing if prompt is None else prompt,
        chunk_sampled=np.ones(int(chunk), dtype=bool),
        window_from=zero,
        upper_from=zero,
        write_from=zero,
        num_drafts=0 if chunk else limits.draft_depth,
        draft=limits.draft_depth > 0,
    )
