"""What the engine counts, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


@dataclass(slots=True)
class ExecutorTimes:
    """Seconds inside the executor so far: the model's forward pass and logits, and the sampler."""

    model_s: float = 0.0
    sampling_s: float = 0.0


@dataclass(slots=True)
class Totals:
    """Running totals of the loop."""

    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    sampled_tokens: int = 0
    submitted: int = 0
    refused: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    step_s: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the engine was built, and its state now. Times are seconds.

    `step_s` = `model_s` + `sampling_s` + `host_s`: the last is scheduling, booking and everything else on the host.
    `decode_rows` are rows of running answers; rows computed again after a preemption are among `prefill_rows`.
    """

    steps: int
    prefill_rows: int
    decode_rows: int
    sampled_tokens: int
    submitted: int
    admitted: int
    refused: int
    preemptions: int
    recomputed_tokens: int
    finished: dict[str, int]
    waiting: int
    prefilling: int
    decoding: int
    blocks_used: int
    blocks_peak: int
    blocks_total: int
    slots_used: int
    slots_total: int
    step_s: float
    model_s: float
    sampling_s: float
    host_s: float
