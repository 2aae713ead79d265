"""Which compressed entries a query attends to: chosen at index sources, used by the layers after them.

Legend: T rows · S selected slots · I index heads · K head dim · C candidate blocks.
"""

from dataclasses import dataclass

from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.step_rows import StepRows
from deepinfer.ops import Ops

KEPT_BYTES = 4 << 20  # selected keys up to this size are read once for all layers that share them


@dataclass
class Selection:
    """One index source's choice. Slots hold entries by ascending index; -1 at the end of a short list."""

    kv_source: int
    outer_TS: Tensor
    inner_TS: Tensor
    mask_TS: Tensor
    keys_TSK: Tensor | None = None


class Selector:
    """Runs the indexer for one step; candidate blocks live from the layer that chooses them to the last that obeys them."""

    def __init__(self, config: V41Config, ops: Ops, rows: StepRows, cache: ModelCache) -> None:
        self._config, self._ops, self._rows, self._cache = config, ops, rows, cache
        self._candidates_TC: Tensor | None = None
        self._selections: dict[int, Selection] = {}

    def go_on(self, rows: StepRows) -> None:
        """From the boundary on work on `rows`, in which some may be missing. Nothing chosen before is used by later layers."""
        assert self._candidates_TC is None, (
            "candidates are chosen among entries of the ratio that the upper layers have"
        )
        self._rows, self._selections = rows, {}

    def choose(self, layer: int, q_TIK: Tensor, weight_TI: Tensor) -> None:
        """Select for index source `layer`, whose new keys are in the cache already."""
        c, ops, rows, cache = self._config, self._ops, self._rows, self._cache
        source = c.kv_source(layer)
        assert source is not None
        visible_T = rows.entries[c.ratio(layer)].visible_T
        keys = cache.index_rows[source]
        scores_TJ = ops.index_scores(
            q_TIK, weight_TI, cache.kind("index"), keys, rows.tables_SB, rows.sequence_T, visible_T
        )
        if layer == c.candidate_source_layer_id:
            self._candidates_TC = ops.candidate_blocks(
                scores_TJ, visible_T, c.candidate_block_size, c.candidate_topk_blocks
            )
        elif layer > c.candidate_source_layer_id:
            assert self._candidates_TC is not None
            scores_TJ = ops.keep_candidates(scores_TJ, self._candidates_TC, c.candidate_block_size)
        entry_TS = ops.best_entries(scores_TJ, c.index_topk)
        mask_TS, per_block = entry_TS >= 0, keys.shape[1]
        block_TS = rows.tables_SB[rows.sequence_T.unsqueeze(1), entry_TS.clamp(min=0) // per_block]
        self._selections[layer] = Selection(source, block_TS.masked_fill(~mask_TS, -1), entry_TS % per_block, mask_TS)

    def keys(self, layer: int, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Main keys [rows, S, K] that `layer` attends to, and their mask."""
        index_source = self._config.index_source(layer)
        assert index_source is not None
        chosen = self._selections[index_source]
        if chosen.keys_TSK is None:
            size = chosen.mask_TS.numel() * self._config.head_dim * self._cache.dtype.itemsize
            if size > KEPT_BYTES:
                return self._read(chosen, rows), chosen.mask_TS[rows]
            chosen.keys_TSK = self._read(chosen, slice(None))
        return chosen.keys_TSK[rows], chosen.mask_TS[rows]

    def _read(self, chosen: Selection, rows: Tensor | slice) -> Tensor:
        cache = self._cache
        store, kind = cache.main_rows[chosen.kv_source], cache.kind("main")
        return self._ops.read_rows(kind, store, chosen.outer_TS[rows], chosen.inner_TS[rows], cache.dtype)


def row_blocks(total: int, bytes_per_row: int, budget_bytes: int) -> list[slice]:
    """Slices of at most as many rows as fit into the budget, at least one each."""
    step = max(1, budget_bytes // max(1, bytes_per_row))
    return [slice(first, min(first + step, total)) for first in range(0, total, step)]


def rows_of(rows_T: Tensor | None, block: slice) -> Tensor | slice:
    """The step's rows that `block` of a row list stands for; None lists all rows."""
    return block if rows_T is None else rows_T[block]
