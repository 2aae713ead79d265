"""Lock-step decoding in the training forward's form: every row of a batch stands at the same position.

Prompts are teacher-forced token by token, so that no row needs a prefill of its own. Caches hold rounded numbers, not bytes.

Legend as in regions.py; W window keys · Y positions of the buffers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny_model import regions
from examples.tiny_model.draft_noise import gumbel
from examples.tiny_model.draft_target import Target
from examples.tiny_model.packing import EOS_ID, PAD_ID
from examples.tiny_model.topk import candidate_mask, index_scores, topk_mask

END_CHECK_EVERY = 16  # steps between looks at whether every row has ended: a look waits for the device


class Decoded(NamedTuple):
    """`lengths_B` counts the end of sentence; rows that never ended have `ended_B` False. States of the last token are zero."""

    ids_BT: Tensor
    lengths_B: Tensor
    ended_B: Tensor
    hidden_BTD: Tensor
    features_BTF: Tensor


class StepAttention:
    """Attention of one position after the other, with the caches of all layers."""

    def __init__(self, target: Target, rows: int, tokens: int) -> None:
        self.target, self.position = target, 0
        c, model = target.config, target.model
        options: dict[str, Any] = {"device": model.device, "dtype": model.dtype}
        self.window = [torch.zeros(rows, tokens, c.head_dim, **options) for _ in range(c.num_hidden_layers)]
        self.entries, self.index_keys = {}, {}
        for layer in c.kv_source_layer_ids:
            count = tokens // c.ratio(layer)
            self.entries[layer] = torch.zeros(rows, count, c.head_dim, **options)
            self.index_keys[layer] = torch.zeros(rows, count, c.index_head_dim, **options)
        self.half: dict[int, Tensor] = {}  # inputs of ratio-2 layers that wait for their partner
        self.allowed: Tensor | None = None  # None: all entries
        self.candidates: Tensor | None = None

    def __call__(self, layer: int, x_B1D: Tensor) -> Tensor:
        m, w, c, t = self.target.model, self.target.weights, self.target.config, self.position
        a, ratio = f"layers.{layer}.attn.", c.ratio(layer)
        cos, sin = (table[t : t + 1] for table in m.rope(c.max_position_embeddings, ratio > 0))
        names = ("wq_a.weight", "q_norm.weight", "wq_b.weight", "wkv.weight", "kv_norm.weight")
        queries, keys, latent = m.region(regions.query_and_key)(
            x_B1D, *(w[a + n] for n in names), cos, sin, c.num_attention_heads, True
        )
        self.window[layer][:, t] = keys[:, 0]
        if layer in c.kv_source_layer_ids:
            self.compress(layer, a, x_B1D)
        if layer in c.index_source_layer_ids:
            self.select(layer, a, x_B1D, latent, cos, sin)
        near = self.window[layer][:, max(0, t + 1 - c.sliding_window) : t + 1]
        out = self.attend(queries, near, self.visible(layer) if ratio else None, w[a + "attn_sink"])
        return regions.project_output(
            out, w[a + "wo_a.weight"], w[a + "wo_b.weight"], cos, sin, c.o_groups, quantised=True
        )

    def visible(self, layer: int) -> Tensor | None:
        c = self.target.config
        count = (self.position + 1) // c.ratio(layer)
        source = c.kv_source(layer)
        assert source is not None, "only layers with entries ask"
        return self.entries[source][:, :count] if count else None

    def compress(self, layer: int, a: str, x_B1D: Tensor) -> None:
        m, w, t, ratio = self.target.model, self.target.weights, self.position, self.target.config.ratio(layer)
        if t % ratio != ratio - 1:
            self.half[layer] = x_B1D
            return
        first = t + 1 - ratio
        cos, sin = (table[first : t + 1] for table in m.rope(self.target.config.max_position_embeddings, True))
        wkv, norm = w[a + "compressor.wkv.weight"], w[a + "compressor.norm.weight"]
        if ratio == 2:
            pair = torch.cat((self.half[layer], x_B1D), 1)
            gate = w[a + "compressor.wgate.weight"]
            entry, latent = regions.compress_pairs(pair, wkv, gate, norm, cos, sin, quantised=True)
        else:
            entry, latent = regions.compress_single(x_B1D, wkv, norm, cos, sin, quantised=True)
        parts = (w[a + "indexer.wk.weight"], w[a + "indexer.k_norm.weight"], cos[:1], sin[:1])
        self.entries[layer][:, t // ratio] = entry[:, 0]
        self.index_keys[layer][:, t // ratio] = regions.index_keys(latent, *parts, quantised=True)[:, 0]

    def select(self, layer: int, a: str, x_B1D: Tensor, latent: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Which entries the layers from `layer` on attend to; no choice while there are no more than top-k."""
        w, c = self.target.weights, self.target.config
        source = c.kv_source(layer)
        assert source is not None
        count = (self.position + 1) // c.ratio(layer)
        self.allowed = None
        if count <= c.index_topk:
            return
        queries, head_weights = regions.index_queries(
            x_B1D, latent, w[a + "indexer.wq_b.weight"], w[a + "indexer.weights_proj.weight"],
            cos, sin, c.index_n_heads, quantised=True,
        )  # fmt: skip
        dots = torch.matmul(queries[:, 0], self.index_keys[source][:, :count].transpose(1, 2))
        scores = index_scores(dots, head_weights[:, 0])
        seen = torch.ones_like(scores, dtype=torch.bool)
        if layer >= c.candidate_source_layer_id and count > c.candidate_topk_blocks * c.candidate_block_size:
            if layer == c.candidate_source_layer_id:
                self.candidates = self.choose_blocks(scores, seen)
            else:
                assert self.candidates is not None
                seen = self.candidates
        self.allowed = topk_mask(scores, seen, c.index_topk)

    def choose_blocks(self, scores_BJ: Tensor, seen_BJ: Tensor) -> Tensor:
        c, count = self.target.config, scores_BJ.shape[1]
        spare = -count % c.candidate_block_size
        newest = torch.full((len(scores_BJ),), count - 1, device=scores_BJ.device)
        padded = (F.pad(scores_BJ, (0, spare)), F.pad(seen_BJ, (0, spare)))
        return candidate_mask(*padded, newest, c.candidate_block_size, c.candidate_topk_blocks)[:, :count]

    def attend(self, q_B1HK: Tensor, near_BWK: Tensor, far_BJK: Tensor | None, sink: Tensor) -> Tensor:
        def banded(keys: Tensor) -> Tensor:
            return torch.matmul(q_B1HK[:, 0], keys.transpose(1, 2))[:, None, None]

        rows, scale = len(q_B1HK), q_B1HK.shape[-1] ** -0.5
        every = torch.ones(1, 1, 1, near_BWK.shape[1], dtype=torch.bool, device=sink.device)
        if far_BJK is None:
            local, _ = regions.joint_softmax(banded(near_BWK), None, every, None, sink, scale)
            return torch.matmul(local[:, 0, 0], near_BWK).unsqueeze(1)
        count = far_BJK.shape[1]
        mask = self.allowed
        if mask is None:
            mask = torch.ones(1, count, dtype=torch.bool, device=sink.device).expand(rows, -1)
        local, far = regions.joint_softmax(banded(near_BWK), banded(far_BJK), every, mask[:, None, None], sink, scale)
        assert far is not None
        out = torch.matmul(local[:, 0, 0], near_BWK) + torch.matmul(far[:, 0, 0], far_BJK)
        return out.unsqueeze(1)


def states(target: Target, ids_BT: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Hidden states [B, D] and features [B, F] of positions 0 … steps - 1. A token is read when its position comes."""
    c, m = target.config, target.model
    attention = StepAttention(target, len(ids_BT), ids_BT.shape[1])
    for t in range(steps):
        attention.position = t
        first = max(0, t + 1 - c.engram_max_ngram_size)
        depth = torch.arange(first, t + 1, device=m.device).expand(len(ids_BT), -1)
        rows = m.engram_rows(ids_BT[:, first : t + 1], depth)[:, -1:]
        result = m.trunk(target.weights, ids_BT[:, t : t + 1], rows, attention, quantised=True, with_features=True)
        assert result.features_BTF is not None
        yield result.hidden_BTD[:, 0], result.features_BTF[:, 0]


@torch.no_grad()
def decode(target: Target, ids_BT: Tensor, prompts_B: Tensor, temperatures_B: Tensor, seeds_B: Tensor) -> Decoded:
    """The target's continuations of the first `prompts_B` tokens of every row, written into `ids_BT` up to its width.

    Temperature 0 is greedy; the others sample as arg max of logits / T plus the noise of (seed, position, token).
    """
    rows, tokens = ids_BT.shape
    m, c = target.model, target.config
    width = len(c.dspark_target_layer_ids) * c.hidden_size
    hidden_BTD = torch.zeros(rows, tokens, c.hidden_size, device=m.device, dtype=m.dtype)
    features_BTF = torch.zeros(rows, tokens, width, device=m.device, dtype=m.dtype)
    lengths_B = torch.full_like(prompts_B, tokens)
    ended_B = torch.zeros_like(prompts_B, dtype=torch.bool)
    for t, (hidden, features) in enumerate(states(target, ids_BT, tokens - 1)):
        hidden_BTD[:, t], features_BTF[:, t] = hidden.to(m.dtype), features.to(m.dtype)
        chosen = sample(target.logits(hidden), temperatures_B, seeds_B, t + 1)
        chosen = torch.where(ended_B, PAD_ID, chosen)
        answering = t + 1 >= prompts_B
        ids_BT[:, t + 1] = torch.where(answering, chosen, ids_BT[:, t + 1])
        ends = answering & ~ended_B & (chosen == EOS_ID)
        lengths_B = torch.where(ends, t + 2, lengths_B)
        ended_B = ended_B | ends
        if t % END_CHECK_EVERY == 0 and bool(ended_B.all()):
            break
    return Decoded(ids_BT, lengths_B, ended_B, hidden_BTD, features_BTF)


def sample(logits_BV: Tensor, temperatures_B: Tensor, seeds_B: Tensor, positions: Tensor | int) -> Tensor:
    """int64 [B]. `positions`: of the tokens that are chosen, one for all rows or one per row."""
    tempered = logits_BV / temperatures_B.clamp_min(1e-6).unsqueeze(1)
    noisy = tempered + gumbel(seeds_B, positions, logits_BV.shape[1])
    return torch.where((temperatures_B > 0).unsqueeze(1), noisy, logits_BV).argmax(1)
