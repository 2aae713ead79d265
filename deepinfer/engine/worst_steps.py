"""The largest steps that an engine may run, of requests that nobody sent: longest context, full batch, all kinds of sampling.

What a step allocates follows from its numbers of rows, sequences and columns of block tables alone. Which experts are chosen,
what the tokens are and whether a sequence is as long as its table says change nothing of it, so that blocks may repeat.
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.device import StepClocked, run_step
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.engine.limits import EngineLimits
from deepinfer.engine.step_plan import decode_plan
from deepinfer.interfaces import Request, SamplingParams, StepPlan

ASKED = SamplingParams(
    temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1, logprobs=20, seed=0
)
SHORT = 4  # tokens of the sequences that decode beside the long prompt


def run_worst_steps(executor: DeviceExecutor, limits: EngineLimits, steps: StepClocked | None = None) -> None:
    """A step full of rows, most of one prompt at the end of the longest context; then one in which all sequences decode.

    They leave nothing behind that a request reads. `steps` as for `warm_up`.
    """
    steps = steps or executor
    slots = np.arange(limits.max_num_seqs)
    others = slots[1:]
    for slot in others.tolist():
        _enter(executor, slot, min(SHORT, limits.max_model_len - 1), limits)
    length = limits.max_model_len - 1
    rows = max(1, min(length, limits.max_num_batched_tokens - len(others)))
    _enter(executor, 0, length, limits)
    run_step(steps, prompt_step(others, length - rows, rows, limits))
    executor.release(0)
    _enter(executor, 0, min(SHORT, limits.max_model_len - 1), limits)
    if limits.draft_depth:
        executor.plant_drafts(slots, limits.draft_depth)
    run_step(steps, decode_step(slots, limits))
    for slot in slots.tolist():
        executor.release(slot)
    executor.forget_times()


def prompt_step(others: np.ndarray, start: int, rows: int, limits: EngineLimits) -> StepPlan:
    """`others` decode one row each beside a chunk of slot 0 from position `start` on, which is sampled.

    Where rows may stay behind in the lower layers one does: such chunks run launch by launch, in memory of their own.
    """
    slots = np.append(others, 0).astype(np.int64)
    zeros = np.zeros(len(slots), dtype=np.int64)
    upper_from = zeros.copy()
    if limits.replay == "compact":
        upper_from[-1] = start + (rows > 1)
    return StepPlan(
        slots=slots,
        num_decode=len(others),
        block_tables=_tables(len(slots), limits),
        chunk_starts=np.array([start], dtype=np.int64),
        chunk_rows=np.array([rows], dtype=np.int64),
        chunk_tokens=np.ones(rows, dtype=np.int64),
        chunk_sampled=np.ones(1, dtype=bool),
        window_from=zeros,
        upper_from=upper_from,
        write_from=zeros,
        num_drafts=0,
        draft=limits.draft_depth > 0,
    )


def decode_step(slots: np.ndarray, limits: EngineLimits) -> StepPlan:
    num_drafts = len(slots) * limits.draft_depth
    return decode_plan(slots, _tables(len(slots), limits), num_drafts=num_drafts, draft=limits.draft_depth > 0)


def _tables(sequences: int, limits: EngineLimits) -> np.ndarray:
    """Block tables as wide as they can be; blocks repeat where there are too few."""
    return np.tile(np.arange(limits.blocks_for(limits.max_model_len)) % limits.num_blocks, (sequences, 1))


def _enter(executor: DeviceExecutor, slot: int, length: int, limits: EngineLimits) -> None:
    request = Request(request_id=-1 - slot, prompt_ids=np.ones(length, dtype=np.int64), params=ASKED, seed=slot)
    executor.admit(slot, request, min(limits.max_model_len, length + 2 * (1 + limits.draft_depth)))
