"""Attention of the training forward: window bands, compressed entries, and the indexer's choice among them.

Legend as in regions.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny_model import regions
from examples.tiny_model.topk import candidate_mask, index_scores, topk_mask

if TYPE_CHECKING:
    from examples.tiny_model.model import TrainingModel

CHUNK = 128  # the sliding window, and the band's query count


class Mode(NamedTuple):
    """What the forward pass does besides the plain computation."""

    quantised: bool = False  # fake-quantise activations, caches and index vectors
    sparse: bool = False  # attend to the indexer's choice instead of all visible entries
    index_rows: int = 0  # rows that train the indexer; 0 leaves it alone


class Layout(NamedTuple):
    """Where documents lie in the packed rows, as masks."""

    depth_BT: Tensor  # position within the document
    near: Tensor  # bool [B, C, Q, S]
    near_upper: Tensor  # the same for the layers that bounded replay cuts
    visible: dict[int, Tensor]  # ratio → bool [B, T, J]


class Attention:
    """Attention of all layers of one forward pass, with what they share: entries, index keys, choices, candidates."""

    def __init__(self, model: TrainingModel, weights: dict[str, Tensor], layout: Layout, mode: Mode) -> None:
        self.model, self.weights, self.layout, self.mode = model, weights, layout, mode
        self.entries: Tensor = torch.empty(0)
        self.latent: Tensor = torch.empty(0)
        self.index_keys: Tensor = torch.empty(0)
        self.allowed: Tensor = torch.empty(0)
        self.candidates: Tensor | None = None
        self.pending: list[tuple] = []  # (index inputs, attention masses of the layers that use the choice)

    def __call__(self, layer: int, x_BTD: Tensor) -> Tensor:
        m, w, c, quantised = self.model, self.weights, self.model.config, self.mode.quantised
        a, ratio = f"layers.{layer}.attn.", c.ratio(layer)
        cos, sin = m.rope(x_BTD.shape[1], ratio > 0)
        names = ("wq_a.weight", "q_norm.weight", "wq_b.weight", "wkv.weight", "kv_norm.weight")
        queries, keys, latent = m.region(regions.query_and_key)(
            x_BTD, *(w[a + n] for n in names), cos, sin, c.num_attention_heads, quantised
        )
        if layer in c.kv_source_layer_ids:
            self.compress(a, ratio, x_BTD, cos, sin)
        if layer in c.index_source_layer_ids:
            self.select(layer, a, ratio, x_BTD, latent, cos, sin)
        near = self.layout.near if layer < c.boundary else self.layout.near_upper
        out = self.attend(queries, keys, near, self.allowed if ratio else None, w[a + "attn_sink"])
        return m.region(regions.project_output)(
            out, w[a + "wo_a.weight"], w[a + "wo_b.weight"], cos, sin, c.o_groups, quantised
        )

    def compress(self, a: str, ratio: int, x_BTD: Tensor, cos: Tensor, sin: Tensor) -> None:
        m, w, quantised = self.model, self.weights, self.mode.quantised
        wkv, norm = w[a + "compressor.wkv.weight"], w[a + "compressor.norm.weight"]
        if ratio == 2:
            gate = w[a + "compressor.wgate.weight"]
            self.entries, self.latent = m.region(regions.compress_pairs)(x_BTD, wkv, gate, norm, cos, sin, quantised)
        else:
            self.entries, self.latent = m.region(regions.compress_single)(x_BTD, wkv, norm, cos, sin, quantised)

    def index_parts(
        self,
        a: str,
        source: str,
        rows: int,
        ratio: int,
        x: Tensor,
        latent: Tensor,
        entry_latent: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries, head weights and keys of the first `rows` rows, from detached inputs."""
        m, w, quantised = self.model, self.weights, self.mode.quantised
        queries, head_weights = m.region(regions.index_queries)(
            x[:rows].detach(), latent[:rows].detach(), w[a + "indexer.wq_b.weight"], w[a + "indexer.weights_proj.weight"],
            cos, sin, m.config.index_n_heads, quantised,
        )  # fmt: skip
        key_parts = (w[source + "indexer.wk.weight"], w[source + "indexer.k_norm.weight"])
        keys = m.region(regions.index_keys)(
            entry_latent[:rows].detach(), *key_parts, cos[::ratio], sin[::ratio], quantised
        )
        return queries, head_weights, keys

    def select(self, layer: int, a: str, ratio: int, x: Tensor, latent: Tensor, cos: Tensor, sin: Tensor) -> None:
        c, mode = self.model.config, self.mode
        visible = self.layout.visible[ratio]
        source = f"layers.{c.kv_source(layer)}.attn."
        self.allowed = visible
        # Index vectors are computed with gradients on even where they only choose: a graph compiled without gradients
        # once gave results that changed from call to call.
        num_rows = len(x) if mode.sparse else mode.index_rows
        if not num_rows:
            return
        parts = self.index_parts(a, source, num_rows, ratio, x, latent, self.latent, cos, sin)
        if mode.sparse:
            self.allowed = self.choose(layer, visible, *(part.detach() for part in parts))
        if mode.index_rows:
            learning = tuple(part[: mode.index_rows] for part in parts)
            self.pending.append((learning, self.allowed[: mode.index_rows], []))

    @torch.no_grad()
    def choose(self, layer: int, visible: Tensor, queries: Tensor, head_weights: Tensor, keys: Tensor) -> Tensor:
        """bool [B, T, J]: the indexer's top entries, within the candidates where there are any."""
        c = self.model.config
        rows, tokens, heads, _ = queries.shape
        dots = torch.matmul(queries.flatten(1, 2), keys.transpose(1, 2)).view(rows * tokens, heads, -1)
        scores = index_scores(dots, head_weights.flatten(0, 1))
        seen = visible.flatten(0, 1)
        if layer == c.candidate_source_layer_id:
            newest = torch.arange(tokens, device=scores.device).repeat(rows)
            self.candidates = candidate_mask(scores, seen, newest, c.candidate_block_size, c.candidate_topk_blocks)
        elif layer > c.candidate_source_layer_id and self.candidates is not None:
            seen = seen & self.candidates
        return topk_mask(scores, seen, c.index_topk).view_as(visible)

    def attend(self, queries: Tensor, keys: Tensor, near: Tensor, far: Tensor | None, sink: Tensor) -> Tensor:
        """[B, T, H, K] attended values."""
        rows, tokens, heads, dim = queries.shape
        chunks = tokens // CHUNK
        blocks = keys.view(rows, chunks, CHUNK, dim)
        banded = torch.cat((F.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1], blocks), 2)
        chunked = queries.reshape(rows, chunks, CHUNK * heads, dim)
        local = torch.matmul(chunked, banded.transpose(-1, -2)).view(rows, chunks, CHUNK, heads, 2 * CHUNK)
        softmax = self.model.region(regions.joint_softmax)
        if far is None:
            local, _ = softmax(local, None, near, None, sink, dim**-0.5)
            return torch.matmul(local.flatten(2, 3), banded).view_as(queries)
        flat = queries.reshape(rows, tokens * heads, dim)
        count = self.entries.shape[1]
        far_logits = torch.matmul(flat, self.entries.transpose(1, 2)).view(rows, chunks, CHUNK, heads, count)
        far_mask = far.view(rows, chunks, CHUNK, count)
        local, weights = softmax(local, far_logits, near, far_mask, sink, dim**-0.5)
        if self.mode.index_rows:
            mass = weights[: self.mode.index_rows].detach().float().sum(3)
            self.pending[-1][2].append(mass.view(-1, tokens, count))
        out = torch.matmul(local.flatten(2, 3), banded).view(rows, tokens * heads, dim)
        return (out + torch.matmul(weights.view(rows, tokens * heads, count), self.entries)).view_as(queries)

    def index_loss(self) -> Tensor:
        """Mean over index sources; a source learns from all layers that use its choice."""
        losses = []
        for (queries, head_weights, keys), allowed, masses in self.pending:
            losses.append(self.model.region(regions.index_loss)(queries, head_weights, keys, sum(masses), allowed))
        return torch.stack(losses).mean() if losses else torch.zeros((), device=self.model.device)
