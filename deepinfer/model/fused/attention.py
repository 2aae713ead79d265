"""One attention layer over a step's rows, by fused operations: keys stay packed, lists of row numbers say what is read.

Legend: T rows · D hidden · H heads · K head dim · I index heads · G groups of heads · [A, B, R] a store.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.fused import glue
from deepinfer.model.fused.beside import beside
from deepinfer.model.fused.indexer import FusedIndexer
from deepinfer.model.fused.step_rows import FusedRows
from deepinfer.model.fused.stored_weights import FusedAttentionWeights
from deepinfer.ops.device import DeviceOps


class FusedAttention:
    """Attention of layer `layer`."""

    def __init__(self, config: V41Config, ops: DeviceOps, weights: FusedAttentionWeights, layer: int) -> None:
        self.config, self.ops, self.weights, self.layer = config, ops, weights, layer
        self.raw_dtype = weights.sink_H.dtype  # values, gates and index weights stay wide
        self.compressed, self.upper = config.ratio(layer) > 0, layer >= config.boundary
        self.compresses, self.indexes = layer in config.kv_source_layer_ids, layer in config.index_source_layer_ids

    def __call__(
        self, normed_TD: Tensor, quantised_TD: Tensor, rows: FusedRows, cache: ModelCache, indexer: FusedIndexer
    ) -> Tensor:
        """[T, D] of the site's input, as it is and on the FP8 grid."""
        ops, w, c = self.ops, self.weights, self.config
        rope_T2F, alone = rows.ropes_T2F[self.compressed], not rows.divided
        with beside(normed_TD, alone and w.raw_ND is not None) as branch:
            weight_TI = self.read_raw(normed_TD, rows, cache)
        low = ops.fp8_linear(quantised_TD, w.down)
        key_TK = low[:, c.q_lora_rank :]
        others = self.ask_others(key_TK, rows)
        latent_TR = ops.norm_quantise(low[:, : c.q_lora_rank], w.q_norm, c.rms_norm_eps).grid_TD
        assert latent_TR is not None
        q_TIK = self.index_queries(latent_TR, rope_T2F) if self.indexes else None
        branch.join()
        with beside(latent_TR, alone and self.indexes) as branch:
            q_THK = ops.fp8_linear(latent_TR, w.up).unflatten(1, (c.num_attention_heads, c.head_dim))
            scratch = self.store_window(key_TK, rope_T2F, rows, cache, others)
        if q_TIK is not None:
            assert weight_TI is not None
            indexer.choose(self.layer, q_TIK, weight_TI)
        branch.join()
        out_THK = self.attend(q_THK, rope_T2F, rows, cache, scratch, indexer)
        return project_out(ops, c, w, out_THK)

    def read_raw(self, normed_TD: Tensor, rows: FusedRows, cache: ModelCache) -> Tensor | None:
        """What is made of the unquantised input, where there is any: stored entries, and the index weights [T, I]."""
        c, w = self.config, self.weights
        if w.raw_ND is None:
            return None
        raw = self.ops.bf16_linear(normed_TD, w.raw_ND, self.raw_dtype)
        if self.compresses and rows.plan.writes_entries:
            self.compress(raw, rows, cache)
        return raw[:, -c.index_n_heads :] * (c.index_head_dim * c.index_n_heads) ** -0.5 if self.indexes else None

    def index_queries(self, latent_TR: Tensor, rope_T2F: Tensor) -> Tensor:
        """[T, I, K], turned and on the index grid."""
        c = self.config
        q_TIK = self.ops.fp8_linear(latent_TR, self.weights.index_up).unflatten(1, (c.index_n_heads, c.index_head_dim))
        return self.ops.rotate_quantise_index_q(q_TIK, rope_T2F)

    def compress_all(self, normed_TD: Tensor, rows: FusedRows, cache: ModelCache) -> None:
        """Store the keys of every row's entries, for a step of which only some rows go on through this layer."""
        self.compress(self.ops.bf16_linear(normed_TD, self.weights.raw_ND, self.raw_dtype), rows, cache)

    def compress(self, raw: Tensor, rows: FusedRows, cache: ModelCache) -> None:
        """Store the main and index keys of every entry that this step completes, then the halves that wait for a partner."""
        ops, w, eps = self.ops, self.weights, self.config.rms_norm_eps
        ratio = self.config.ratio(self.layer)
        if rows.divided:
            raw = rows.of_all(raw[:, : ratio * self.config.head_dim])
        entries, tail = rows.entries[ratio], cache.tails.get(self.layer)
        place = entries.rope_T2F, cache.main_rows[self.layer], entries.rows_T
        pairs = {"partner_E": rows.partner_T, "tail_ASX": tail} if ratio == 2 else {}
        latent_TK = ops.compress_store(raw, rows.own_T, w.compressor_norm_K, eps, *place, **pairs)
        index = ops.bf16_linear(latent_TK, w.index_wk, latent_TK.dtype)
        place = entries.rope_T2F, cache.index_rows[self.layer], entries.rows_T
        ops.index_store(index, w.index_k_norm, eps, *place)
        if tail is not None and rows.tails is not None:
            ops.write_tails(tail, raw, rows.tails.from_M, rows.tails.to_M)

    def ask_others(self, key_TK: Tensor, rows: FusedRows) -> Callable[[], Tensor] | None:
        """Begin to share window keys, where ranks share the step's rows; what comes back waits for them [X, K]."""
        return None if rows.plan.others is None else rows.plan.others.gather_window(key_TK)

    def store_others(self, rows: FusedRows, cache: ModelCache) -> None:
        """This layer's window keys where none of the step's rows is here: those that other ranks have."""
        key_0K = self.weights.kv_norm_K.new_empty(0, self.config.head_dim)
        others = self.ask_others(key_0K, rows)
        if others is not None:
            self.store_window(key_0K, rows.ropes_T2F[self.compressed], rows, cache, others)

    def store_window(
        self,
        key_TK: Tensor,
        rope_T2F: Tensor,
        rows: FusedRows,
        cache: ModelCache,
        others: Callable[[], Tensor] | None = None,
    ) -> Tensor | None:
        """Bring the ring, and snapshots, up to date; the scratch store of far sequences, where the step has any."""
        ring = cache.rings[self.layer]
        scratch = rows.scratch(ring)
        store = ring if scratch is None else scratch
        if rows.old is not None:
            glue.copy_rows(ring, rows.old.from_M, store, rows.old.to_M)
        norm = self.weights.kv_norm_K, self.config.rms_norm_eps
        if len(key_TK):
            self.ops.norm_rope_store_window(key_TK, *norm, rope_T2F, store, rows.store_T)
        if others is not None and rows.shared is not None:
            place = rows.shared.ropes_X2F[self.compressed], store, rows.shared.store_X
            self.ops.norm_rope_store_window(others(), *norm, *place)
        if rows.new is not None:
            glue.copy_rows(store, rows.new.from_M, ring, rows.new.to_M)
        return scratch

    def attend(
        self,
        q_THK: Tensor,
        rope_T2F: Tensor,
        rows: FusedRows,
        cache: ModelCache,
        scratch: Tensor | None,
        indexer: FusedIndexer,
    ) -> Tensor:
        """[T, H, K], rotation undone; run by run of rows that read one store."""
        c, source, parts = self.config, self.config.kv_source(self.layer), []
        main = None if source is None else cache.main_rows[source]
        chosen_TN = None if source is None else indexer.rows(self.layer)
        window_TW = rows.upper_window_rows_TW if self.upper else rows.window_rows_TW
        for run in rows.runs:
            at = slice(run.first, run.end)
            store = scratch if run.far else cache.rings[self.layer]
            keys = store, window_TW[at], main, None if chosen_TN is None else chosen_TN[at]
            sink = self.weights.sink_H, c.head_dim**-0.5
            parts.append(self.ops.sparse_attention(q_THK[at], *keys, *sink, rope_T2F[at]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def project_out(ops: DeviceOps, config: V41Config, weights: FusedAttentionWeights, out_THK: Tensor) -> Tensor:
    """[T, D] of all heads' outputs: group by group down, then all groups together up."""
    low = ops.fp8_grouped_linear(out_THK.view(len(out_THK), config.o_groups, -1), weights.wo_a)
    return ops.fp8_linear(ops.quantise(low).grid_TD, weights.wo_b)
