"""Two tiny steps on scratch caches, so that loops which are compiled at first use are ready before the first request."""

import time

import numpy as np

from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.v41 import V41Model

PROMPT_ROWS = 4  # even and odd positions, and a chunk longer than one row


def warm_up(model: V41Model) -> float:
    """Seconds that a prompt and a decode step took. The model's own caches are not touched."""
    started_s = time.perf_counter()
    cache = ModelCache(model.config, model.layout, num_blocks=1, num_slots=1)
    for first, rows in ((0, PROMPT_ROWS), (PROMPT_ROWS, 1)):
        positions = np.arange(first, first + rows)
        step = StepInput(
            token_ids=np.zeros(rows, dtype=np.int64),
            positions=positions,
            ngram_ids=np.where(positions[:, None] >= np.arange(max(1, model.config.engram_max_ngram_size)), 0, -1),
            row_starts=np.array([0, rows]),
            state_slots=np.zeros(1, dtype=np.int64),
            block_tables=np.zeros((1, 1), dtype=np.int64),
            sample_rows=np.array([rows - 1]),
        )
        model.logits(model.forward(step, cache)[-1:])
    return time.perf_counter() - started_s
