"""DSpark as a drafter of the engine: window rings beside the model's own, and one block a round for all sequences.

Shapes: T rows of a step · F features · S sequences · W window · K drafts · V vocabulary · N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.interfaces import Drafts
from deepinfer.model.ring_writes import ring_writes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer.arch.cache import CacheLayout
    from deepinfer.arch.config import V41Config
    from deepinfer.interfaces import StepInput
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.dspark import DSparkModel
    from deepinfer.speculation.calibration import Calibration


class DSpark:
    """Drafts with the checkpoint's own module. A sequence's drafts depend on its tokens alone, not on batches or steps.

    `cache` is the model's: its rings after the trunk's are the draft layers'. Keys are written for every row of a step, before
    it is known which drafts are accepted; rows of rejected ones are the first that the next step overwrites. `depth` may be
    less than the block: the block is computed whole, and only its first drafts are chosen. `temperatures` says at which
    temperature slots [S] are served, for the calibration.
    """

    needs_features = True

    def __init__(
        self,
        model: DSparkModel,
        cache: ModelCache,
        *,
        depth: int,
        calibration: Calibration,
        temperatures: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        config, layers = model.config, len(model.layers)
        check_depth(depth, config, cache.layout)
        assert len(cache.rings) == config.num_hidden_layers + layers, "the caches must have a ring per draft layer"
        self.model, self.cache, self.depth = model, cache, depth
        self.calibration, self.temperatures = calibration, temperatures
        self._rings = cache.rings[config.num_hidden_layers :]
        self._floor_N = np.zeros(cache.state.shape[0], dtype=np.int64)  # positions before it have no features

    @torch.inference_mode()
    def observe(self, step: StepInput, features_TF: Tensor) -> None:
        """Keys of the newest rows of every sequence go into the draft rings, its own and those of the step's snapshots."""
        floor_S = step.window_from if step.upper_from is None else step.upper_from
        self._floor_N[step.state_slots] = 0 if floor_S is None else floor_S
        writes = ring_writes(step, self.cache.layout.ring_slots, self.cache.num_slots)
        positions_T = torch.from_numpy(step.positions)[writes.rows_T]
        keys = self.model.context_keys(features_TF[writes.rows_T], positions_T)
        for ring, keys_TK in zip(self._rings, keys, strict=True):
            self.model.ops.write_rows(self.cache.kind("window"), ring, writes.outer_T, writes.inner_T, keys_TK)

    @torch.inference_mode()
    def draft(
        self,
        slots: np.ndarray,
        tokens_NL: np.ndarray,
        num_tokens: np.ndarray,
        pad: int,
        choose: Callable[..., np.ndarray],
    ) -> Drafts:
        """See `interfaces.Drafter`; `choose` gets float32 logits [S, V]."""
        if not len(slots):
            return Drafts.none(self.depth)

        def chosen(number: int, logits_SV: Tensor) -> Tensor:
            return torch.from_numpy(choose(number, logits_SV.float()))

        position_S = num_tokens - 1  # of the newest token
        newest_S = torch.from_numpy(tokens_NL[slots, pad + position_S].astype(np.int64))
        hidden_SQD = self._block(newest_S, slots, position_S)
        drafts = self.model.draft(hidden_SQD, newest_S, chosen, self.depth)
        token_ids = drafts.tokens_SQ.numpy()
        chance_SK = self.calibration(drafts.confidence_SQ.double().numpy(), self.temperatures(slots))
        return Drafts(token_ids, np.where(token_ids >= 0, chance_SK, np.float32(0)))

    def serve(self) -> None:
        """This rank's part in a round of drafts of others, where it has no sequences of its own."""
        self.model.serve()

    def _block(self, newest_S: Tensor, slots: np.ndarray, position_S: np.ndarray) -> Tensor:
        """Hidden states of the block behind the window W positions before each newest token."""
        wanted_SW = position_S[:, None] - np.arange(self.model.config.sliding_window, 0, -1)
        there_SW = wanted_SW >= self._floor_N[slots, None]
        outer_SW = torch.from_numpy(np.where(there_SW, slots[:, None], -1))
        inner_SW = torch.from_numpy(wanted_SW % self.cache.layout.ring_slots)

        def reader(ring: Tensor) -> Callable[[slice], Tensor]:
            kind, dtype = self.cache.kind("window"), self.cache.dtype
            return lambda at: self.model.ops.read_rows(kind, ring, outer_SW[at], inner_SW[at], dtype)

        windows = [reader(ring) for ring in self._rings]
        return self.model.block(newest_S, torch.from_numpy(position_S), windows, torch.from_numpy(there_SW))


def check_depth(depth: int, config: V41Config, layout: CacheLayout) -> None:
    """Raises ValueError for more drafts than a block has."""
    if depth > config.dspark_block_size:
        raise ValueError(
            f"speculation.depth={depth}: the drafter was trained for blocks of {config.dspark_block_size}; "
            f"speculation.depth={config.dspark_block_size}"
        )
    assert layout.ring_slots >= config.sliding_window + depth, "rejected drafts must not take back window keys"
