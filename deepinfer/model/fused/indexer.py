"""Which compressed entries a query attends to, as row numbers of the main keys: chosen at index sources, used by later layers.

Legend: T rows · N chosen entries · I index heads · K index dim · J entries of the widest table · C candidate blocks.
"""

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused.step_rows import FusedRows
from deepinfer.model.selection import row_blocks
from deepinfer.ops.device import DeviceOps

SCORE_BYTES = 256 << 20  # scores that exist at a time; long prompts are scored some rows after others


class FusedIndexer:
    """For one step. Candidate blocks live from the layer that chooses them to the last that obeys them."""

    def __init__(self, config: V41Config, ops: DeviceOps, rows: FusedRows, cache: ModelCache) -> None:
        self._config, self._ops, self._rows, self._cache = config, ops, rows, cache
        self._candidates_TC: Tensor | None = None
        self._chosen: dict[int, Tensor] = {}

    def go_on(self, rows: FusedRows) -> None:
        """From the boundary on work on `rows`. Nothing chosen before is used by later layers."""
        assert self._candidates_TC is None, (
            "candidates are chosen among entries of the ratio that the upper layers have"
        )
        self._rows, self._chosen = rows, {}

    def rows(self, layer: int) -> Tensor:
        """Row numbers int32 [T, N] among the main keys of what `layer` attends to; -1 at the end of a short list."""
        source = self._config.index_source(layer)
        assert source is not None
        return self._chosen[source]

    def choose(self, layer: int, q_TIK: Tensor, weight_TI: Tensor) -> None:
        """Choose for index source `layer`, whose new keys are in the cache already."""
        c, rows = self._config, self._rows
        source = c.kv_source(layer)
        assert source is not None
        store = self._cache.index_rows[source]
        width = rows.tables_SB.shape[1] * store.shape[1]
        entry_TN = q_TIK.new_empty(rows.num_rows, c.index_topk, dtype=torch.int32)
        if layer == c.candidate_source_layer_id:
            self._candidates_TC = q_TIK.new_empty(rows.num_rows, c.candidate_topk_blocks, dtype=torch.int32)
        for block in row_blocks(
            rows.num_rows, 4 * max(width, c.candidate_block_size * c.candidate_topk_blocks), SCORE_BYTES
        ):
            self._choose_rows(layer, block, q_TIK, weight_TI, store, width, entry_TN)
        self._chosen[layer] = self._ops.entry_rows(entry_TN, rows.tables_SB, rows.sequence_T, store.shape[1])

    def _choose_rows(
        self,
        layer: int,
        block: slice,
        q_TIK: Tensor,
        weight_TI: Tensor,
        store_ABR: Tensor,
        width: int,
        entry_TN: Tensor,
    ) -> None:
        c, ops, rows = self._config, self._ops, self._rows
        visible_T = rows.entries[c.ratio(layer)].visible_T[block]
        keys = q_TIK[block], weight_TI[block], store_ABR, rows.tables_SB, rows.sequence_T[block], visible_T
        candidates = None if self._candidates_TC is None else self._candidates_TC[block]
        if layer > c.candidate_source_layer_id:
            assert candidates is not None
            scores = weight_TI.new_empty(len(visible_T), c.candidate_block_size * candidates.shape[1])
            ops.candidate_scores(*keys, candidates, scores)
            ops.top_entries(scores, visible_T, entry_TN[block], candidates)
            return
        scores = weight_TI.new_empty(len(visible_T), width)
        ops.paged_index_scores(*keys, scores, rows.rows_together)
        ops.top_entries(scores, visible_T, entry_TN[block])
        if layer == c.candidate_source_layer_id:
            assert candidates is not None
            ops.candidate_blocks(scores, visible_T, candidates, c.candidate_block_size)
