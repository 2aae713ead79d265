"""One attention layer over a step's rows: window keys from the ring, compressed keys from the blocks.

Legend: T rows · D hidden · H heads · K head dim · R latent dim · W window · I index heads · E completed entries ·
X rows whose window keys ranks share.
"""

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.layer_weights import AttentionWeights
from deepinfer.model.selection import Selector, row_blocks, rows_of
from deepinfer.model.step_rows import StepRows
from deepinfer.ops import Ops

KEY_BYTES = 4 << 20  # keys laid out for attention at a time: they are read twice and should still be in cache


class Attention:
    """Attention of layer `layer`; `quantise` rounds the inputs of FP8 products, `quantise_cache` says caches are packed."""

    def __init__(self, config: V41Config, ops: Ops, weights: AttentionWeights, layer: int, numerics: str) -> None:
        self.config, self.ops, self.weights, self.layer = config, ops, weights, layer
        self.compressed = config.ratio(layer) > 0
        self.compresses, self.indexes = layer in config.kv_source_layer_ids, layer in config.index_source_layer_ids
        self.quantise = ops.quantise_activation if numerics == "full" else _same
        self.quantise_window = ops.quantise_activation if numerics != "none" else _same
        self.quantise_index = ops.quantise_index if numerics != "none" else _same

    def __call__(self, x_TD: Tensor, rows: StepRows, cache: ModelCache, selector: Selector) -> Tensor:
        ops, w, c = self.ops, self.weights, self.config
        rope_T2F = rows.rope_T2F[self.compressed]
        latent_TR, key_TK = self.project_down(x_TD, rope_T2F)
        shared_XK = rows.gather_shared(key_TK)
        q_THK, q_index = self.project_queries(latent_TR, rope_T2F)
        raw = None if w.raw_ND is None else ops.linear(x_TD, w.raw_ND)
        if self.compresses and rows.makes_entries:
            assert raw is not None
            self.compress(raw, rows, cache)
        if self.indexes:
            assert raw is not None
            q_TIK = q_index.unflatten(1, (c.index_n_heads, c.index_head_dim))
            q_TIK = self.quantise_index(ops.rotate(q_TIK, rope_T2F))
            weight_TI = raw[:, -c.index_n_heads :] * (c.index_head_dim * c.index_n_heads) ** -0.5
            selector.choose(self.layer, q_TIK, weight_TI)
        return self.project_out(self.attend(q_THK, key_TK, shared_XK(), rows, cache, selector), rope_T2F)

    def project_down(self, x_TD: Tensor, rope_T2F: Tensor) -> tuple[Tensor, Tensor]:
        """The query latent [T, R] and the rotated window key [T, K]."""
        ops, w, rank = self.ops, self.weights, self.config.q_lora_rank
        low = ops.linear(self.quantise(x_TD), w.down_ND)
        latent_TR = ops.rms_norm(low[:, :rank], w.q_norm, self.config.rms_norm_eps)
        key_TK = ops.rms_norm(low[:, rank:], w.kv_norm_K, self.config.rms_norm_eps)
        return latent_TR, ops.rotate(key_TK, rope_T2F)

    def project_queries(self, latent_TR: Tensor, rope_T2F: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries [T, H, K], and the indexer's [T, I · K'] where this layer has one (else zero wide)."""
        heads, head_dim = self.config.num_attention_heads, self.config.head_dim
        wide = self.ops.linear(self.quantise(latent_TR), self.weights.up_NR)
        q_THK = self.ops.rotate(wide[:, : heads * head_dim].unflatten(1, (heads, head_dim)), rope_T2F)
        return q_THK, wide[:, heads * head_dim :]

    def project_out(self, out_THK: Tensor, rope_T2F: Tensor) -> Tensor:
        """Undo the rotation that came along with the values, then the grouped two-step projection [T, D]."""
        turned = self.ops.rotate(out_THK, rope_T2F, True)
        low = self.ops.grouped_linear(turned.reshape(turned.shape[0], self.config.o_groups, -1), self.weights.wo_a_GRK)
        return self.ops.linear(self.quantise(low), self.weights.wo_b_DR)

    def store(self, rows: StepRows, cache: ModelCache) -> None:
        """This layer's window keys where none of the step's rows is here: those that other ranks have."""
        if rows.num_all:
            shared_XK = rows.gather_shared(torch.zeros(0, self.config.head_dim, dtype=cache.dtype))()
            self.write_ring(shared_XK, rows, cache)

    def compress_all(self, x_TD: Tensor, rows: StepRows, cache: ModelCache) -> None:
        """Store the keys of every row's entries, for a step of which only some rows go on through this layer."""
        assert self.weights.raw_ND is not None
        self.compress(self.ops.linear(x_TD, self.weights.raw_ND), rows, cache)

    def compress(self, raw: Tensor, rows: StepRows, cache: ModelCache) -> None:
        """Store the main and index keys of every entry that this step completes; `raw` are the rows here."""
        ops, w, c = self.ops, self.weights, self.config
        assert w.compressor_norm_K is not None and w.index_wk is not None and w.index_k_norm is not None
        ratio = c.ratio(self.layer)
        entries = rows.entries[ratio]
        raw = rows.gather_all(raw[:, : ratio * c.head_dim])()
        values = self.paired(raw, rows, cache) if ratio == 2 else raw[entries.rows_E, : c.head_dim]
        if not entries.rows_E.shape[0]:
            return
        latent_EK = ops.rms_norm(values, w.compressor_norm_K, c.rms_norm_eps)
        main_EK = ops.rotate(latent_EK, entries.rope_E2F)
        place = (entries.outer_E, entries.inner_E)
        ops.write_rows(cache.kind("main"), cache.main_rows[self.layer], *place, main_EK)
        index = ops.rms_norm(ops.linear(latent_EK, w.index_wk), w.index_k_norm, c.rms_norm_eps)
        ops.write_rows(cache.kind("index"), cache.index_rows[self.layer], *place, ops.rotate(index, entries.rope_E2F))

    def paired(self, raw: Tensor, rows: StepRows, cache: ModelCache) -> Tensor:
        """Pooled values [E, K] of completed pairs; halves still waiting go to the tail."""
        pairs, tail, head_dim = rows.pairs, cache.tails[self.layer], self.config.head_dim
        assert pairs is not None
        halves = raw[:, : 2 * head_dim].to(tail.dtype)
        waiting = self.ops.read_rows("plain", tail, pairs.tail_outer_E, pairs.tail_inner_E, tail.dtype)
        first = torch.where(pairs.from_tail_E.unsqueeze(1), waiting, halves[pairs.partner_E])
        both = torch.stack((first, halves[rows.entries[2].rows_E]), dim=1)
        self.ops.write_rows("plain", tail, pairs.writes.outer_T, pairs.writes.inner_T, halves[pairs.writes.rows_T])
        return self.ops.pool_pairs(both[..., :head_dim], both[..., head_dim:]).to(raw.dtype)

    def attend(
        self, q_THK: Tensor, key_TK: Tensor, shared_XK: Tensor, rows: StepRows, cache: ModelCache, selector: Selector
    ) -> Tensor:
        """[T, H, K] before the inverse rotation. Long chunks read the ring before this step overwrites it, others after."""
        ring, kind = cache.rings[self.layer], cache.kind("window")
        near, chunks = rows.windows.ring_rows, rows.windows.chunks
        older = [self.ops.read_rows(kind, ring, k.outer_W, k.inner_W, cache.dtype) for k in chunks]
        self.write_ring(shared_XK, rows, cache)
        out_THK = torch.empty_like(q_THK)
        slot_bytes = self.config.head_dim * cache.dtype.itemsize
        row_bytes = slot_bytes * (self.config.sliding_window + (self.config.index_topk if self.compressed else 0))
        if near is not None:
            for block in row_blocks(near.mask_TW.shape[0], row_bytes, KEY_BYTES):
                at = rows_of(near.rows_T, block)
                window = self.ops.read_rows(kind, ring, near.outer_TW[block], near.inner_TW[block], cache.dtype)
                out_THK[at] = self.attend_rows(q_THK[at], window, near.mask_TW[block], at, selector)
        for chunk, old_WK in zip(chunks, older):
            new_TK = key_TK[chunk.start : chunk.end]
            if chunk.lead.start < chunk.lead.stop:
                new_TK = torch.cat((shared_XK[chunk.lead], new_TK))
            keys_TK = torch.cat((old_WK, self.quantise_window(new_TK)))
            for block in row_blocks(chunk.end - chunk.start, row_bytes, KEY_BYTES):
                window = sliding(keys_TK, block, self.config.sliding_window)
                at = slice(chunk.start + block.start, chunk.start + block.stop)
                out_THK[at] = self.attend_rows(q_THK[at], window, chunk.mask_TW[block], at, selector)
        return out_THK

    def write_ring(self, shared_XK: Tensor, rows: StepRows, cache: ModelCache) -> None:
        place = (rows.ring.outer_T, rows.ring.inner_T)
        self.ops.write_rows(cache.kind("window"), cache.rings[self.layer], *place, shared_XK[rows.ring.rows_T])

    def attend_rows(
        self, q_THK: Tensor, window_TWK: Tensor, mask_TW: Tensor, at: Tensor | slice, selector: Selector
    ) -> Tensor:
        selected, mask = selector.keys(self.layer, at) if self.compressed else (None, None)
        scale = self.config.head_dim**-0.5
        return self.ops.attention(q_THK, window_TWK, mask_TW, selected, mask, self.weights.sink_H, scale)


def sliding(keys_XK: Tensor, rows: slice, window: int) -> Tensor:
    """Overlapping views [rows, W, K]: row i sees keys i : i + W. Nothing is copied."""
    width = keys_XK.shape[1]
    return keys_XK.as_strided((rows.stop - rows.start, window, width), (width, width, 1), rows.start * width)


def _same(x: Tensor) -> Tensor:
    return x
