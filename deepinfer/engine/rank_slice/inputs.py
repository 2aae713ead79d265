"""Steps with invented tokens, and caches full of valid rows: what a rank meets in the middle of its work.

Legend: S sequences · T rows · B blocks of a sequence · G n-gram slots.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.formats import pack_index, pack_main, pack_window
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache

ROW_KINDS = 4096  # different rows of each kind; a store repeats them in random order
COPIED = 1 << 20  # rows copied at a time


def block_tables(sequences: int, context: int, block_tokens: int) -> np.ndarray:
    """int64 [S, B]: blocks of sequences of `context` tokens, in no order."""
    blocks = -(-context // block_tokens)
    return np.random.default_rng(context).permutation(sequences * blocks).reshape(sequences, blocks)


def prompt_step(
    config: V41Config, prompt: int, start: int, stop: int, block_tokens: int, keep: int | None
) -> StepInput:
    """Rows `start` … `stop` - 1 of one prompt; `keep`: its last rows that pass the later layers, None for all."""
    generator, rows, ngram = np.random.default_rng(start), stop - start, config.engram_max_ngram_size
    token_ids, positions = generator.integers(0, config.vocab_size, rows), np.arange(start, stop)
    ngram_ids = generator.integers(0, config.vocab_size, (rows, ngram))
    ngram_ids[:, 0] = token_ids
    ngram_ids[positions[:, None] < np.arange(ngram)] = -1
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        ngram_ids=ngram_ids,
        row_starts=np.array([0, rows]),
        state_slots=np.zeros(1, dtype=np.int64),
        block_tables=block_tables(1, prompt, block_tokens),
        sample_rows=np.array([rows - 1] if stop == prompt else [], dtype=np.int64),
        upper_from=None if keep is None else np.array([max(0, prompt - keep)]),
    )


def fill_cache(cache: ModelCache, seed: int = 0) -> None:
    """Every row of every store becomes a valid one with values as normed keys have them; tails are small numbers."""
    config, device = cache.config, cache.blocks.device
    generator = torch.Generator(device).manual_seed(seed)
    stores: list[tuple[Callable[[Tensor], Tensor], int, list[Tensor]]] = [
        (pack_main, config.head_dim, list(cache.main_rows.values())),
        (pack_index, config.index_head_dim, list(cache.index_rows.values())),
        (pack_window, config.head_dim, list(cache.rings)),
    ]
    for pack, width, views in stores:
        rows = pack(torch.randn(ROW_KINDS, width, generator=generator, device=device))
        for view in views:
            _fill(view, rows, generator)
    for tail in cache.tails.values():
        tail.normal_(generator=generator)


def _fill(view_ABR: Tensor, rows: Tensor, generator: torch.Generator) -> None:
    each = max(1, COPIED // view_ABR.shape[1])
    for part in view_ABR.split(each):
        picks = torch.randint(0, len(rows), part.shape[:2], generator=generator, device=rows.device)
        part.copy_(rows[picks])
