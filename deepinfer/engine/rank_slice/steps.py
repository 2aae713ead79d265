"""One step of a prompt as a call without arguments: what is timed, captured and profiled.

Row numbers are made once, before; the rest is what an engine does on the device: all layers, head, sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.model import FusedModel
from deepinfer.ops.sampling_rows import SamplingRows

Call = Callable[[], object]


def prompt_call(model: FusedModel, cache: ModelCache, step: StepInput) -> Call:
    """The forward pass of `step`, and its sampled tokens where it has any."""
    made = model.rows(step, cache)
    sampled_R = torch.from_numpy(step.sample_rows).to(model.device)
    positions = step.positions[step.sample_rows] + 1
    asked = plain_sampling(positions, model.config.vocab_size).to(model.device) if len(positions) else None

    @torch.inference_mode()
    def call() -> Tensor:
        hidden_TD = model.run_rows(*made, cache, None)
        if asked is None:
            return hidden_TD
        return model.ops.sample_rows(model.logits(hidden_TD[sampled_R]), asked).token_R

    return call


def plain_sampling(positions: np.ndarray, vocabulary: int) -> SamplingRows:
    """Of rows that decide the tokens at `positions`: temperature 1 and nothing else, as the release's default is."""
    rows = len(positions)

    def full(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype)

    one, zero = full(1.0, torch.float64), full(0.0, torch.float64)
    none = torch.zeros(0, dtype=torch.int32)
    return SamplingRows(
        seed_R=torch.arange(rows),
        position_R=torch.from_numpy(positions),
        temperature_R=one,
        top_p_R=one,
        min_p_R=zero,
        repetition_R=one,
        frequency_R=zero,
        presence_R=zero,
        top_k_R=full(0, torch.int32),
        num_logprobs_R=full(-1, torch.int32),
        processed_R=full(0, torch.int32),
        mask_row_R=full(-1, torch.int32),
        masks_MW=torch.zeros(0, vocabulary // 32, dtype=torch.int32),
        edit_starts_X=torch.zeros(rows + 1, dtype=torch.int32),
        edit_ids_E=none,
        edit_biases_E=none.double(),
        edit_counts_E=none,
    )
