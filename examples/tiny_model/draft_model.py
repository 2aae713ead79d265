"""The drafter's training forward: what deepinfer/model/dspark.py computes, batched over spans of consecutive anchors.

An anchor is a block's newest token; its block proposes the tokens after it. G spans of A anchors share one stretch of
context: the C = A + 127 positions before the last anchor. Slots of all blocks lie in one row, [1, G · A · Q, ...].

Legend as in regions.py, and: G spans · A anchors of a span · Q slots of a block · C context positions · M = G · A blocks.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny_model import regions
from examples.tiny_model.draft_target import Target
from examples.tiny_model.straight_through import activation, window_key


class Spans(NamedTuple):
    """`positions_GA` of the anchors. Context: `features_GCF` at the positions of `context_GC`; negative ones do not exist."""

    newest_GA: Tensor
    positions_GA: Tensor
    features_GCF: Tensor
    context_GC: Tensor


class Blocks(NamedTuple):
    hidden_MQD: Tensor  # before the norm
    load_LE: Tensor
    balance: Tensor


class DraftModel:
    """Stateless but for the router bias: weights are handed to every call, under the names of parameters.py."""

    def __init__(self, target: Target) -> None:
        c = target.config
        assert c.dspark_num_experts_per_tok == 2, "regions.experts chooses two"
        self.target, self.config, self.slots = target, c, c.dspark_block_size
        self.num_layers = c.num_nextn_predict_layers
        self.last = f"mtp.{self.num_layers - 1}."
        self.bias_LE = torch.zeros(self.num_layers, c.dspark_n_routed_experts, device=target.model.device)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.target.model.rope(self.config.max_position_embeddings, False)
        return cos[positions], sin[positions]

    def context_keys(self, weights: dict[str, Tensor], features_GCF: Tensor, context_GC: Tensor) -> list[Tensor]:
        """[G, C, K] per layer, as a ring would hold them."""
        main = regions.linear(activation(features_GCF), weights["mtp.0.main_proj.weight"])
        main = activation(regions.rms_norm(main, weights["mtp.0.main_norm.weight"]).to(features_GCF.dtype))
        cos, sin = self.rope(context_GC.clamp_min(0))
        keys = []
        for layer in range(self.num_layers):
            a = f"mtp.{layer}.attn."
            key = regions.rms_norm(regions.linear(main, weights[a + "wkv.weight"]), weights[a + "kv_norm.weight"])
            keys.append(window_key(regions.rotate(key.to(main.dtype), cos, sin)))
        return keys

    def blocks(self, weights: dict[str, Tensor], spans: Spans) -> Blocks:
        """Hidden states of every anchor's block."""
        c, model = self.config, self.target.model
        keys = self.context_keys(weights, spans.features_GCF.to(model.dtype), spans.context_GC)
        anchors = spans.positions_GA.unsqueeze(2)
        context = spans.context_GC.unsqueeze(1)
        seen_GAC = (context >= 0) & (context < anchors) & (context >= anchors - c.sliding_window)
        newest_M = spans.newest_GA.flatten()
        ids_MQ = torch.full((len(newest_M), self.slots), c.dspark_noise_token_id, device=model.device)
        ids_MQ[:, 0] = newest_M
        positions = anchors + torch.arange(self.slots, device=model.device)
        cos, sin = self.rope(positions.flatten())
        x = F.embedding(ids_MQ.view(1, -1), self.target.weights["embed.weight"]).to(model.dtype)
        x = x.unsqueeze(2).expand(-1, -1, c.hc_mult, -1).contiguous()
        read = torch.zeros(*x.shape[:3], device=model.device)
        read[..., 0] = 1
        loads, balances = [], []
        for layer in range(self.num_layers):
            p = f"mtp.{layer}."

            def attend(u: Tensor, p: str = p, layer: int = layer) -> Tensor:
                return self.attend(weights, p + "attn.", u, cos, sin, keys[layer], seen_GAC)

            def experts(u: Tensor, p: str = p, layer: int = layer) -> Tensor:
                out, load, balance = model.experts(weights, p, self.bias_LE[layer], u, quantised=True)
                loads.append(load)
                balances.append(balance)
                return out

            read, x = model.site(weights, p, "attn", x, read, attend)
            read, x = model.site(weights, p, "ffn", x, read, experts)
        hidden = regions.stream_sum(x, read).view(len(newest_M), self.slots, -1)
        return Blocks(hidden, torch.stack(loads), torch.stack(balances).sum())

    def attend(
        self, weights: dict[str, Tensor], a: str, u: Tensor, cos: Tensor, sin: Tensor, context: Tensor, seen: Tensor
    ) -> Tensor:
        """Queries of a block see the window before its anchor and all of the block's own keys."""
        c, model, (spans, anchors) = self.config, self.target.model, seen.shape[:2]
        names = ("wq_a.weight", "q_norm.weight", "wq_b.weight", "wkv.weight", "kv_norm.weight")
        queries, keys, _ = model.region(regions.query_and_key)(
            u, *(weights[a + n] for n in names), cos, sin, c.num_attention_heads, True
        )
        dim, shape = queries.shape[-1], (spans, anchors, self.slots, c.num_attention_heads)
        by_span = queries.view(spans, -1, dim)
        by_block = queries.view(spans * anchors, -1, dim)
        own = keys.view(spans * anchors, self.slots, dim)
        near = torch.matmul(by_span, context.transpose(1, 2)).view(*shape, -1)
        block = torch.matmul(by_block, own.transpose(1, 2)).view(*shape, -1)
        every = torch.ones(1, 1, 1, self.slots, dtype=torch.bool, device=u.device)
        near, blocked = regions.joint_softmax(
            near, block, seen.unsqueeze(2), every, weights[a + "attn_sink"], dim**-0.5
        )
        assert blocked is not None
        out = torch.matmul(near.view(spans, -1, near.shape[-1]), context).view_as(queries)
        out = out + torch.matmul(blocked.view(spans * anchors, -1, self.slots), own).view_as(queries)
        return regions.project_output(
            out, weights[a + "wo_a.weight"], weights[a + "wo_b.weight"], cos, sin, c.o_groups, quantised=True
        )

    def heads(self, weights: dict[str, Tensor], hidden_XD: Tensor, previous_X: Tensor) -> tuple[Tensor, Tensor]:
        """float32 logits [X, V] and confidence before the sigmoid [X] of slots X, given the token before each."""
        hidden = hidden_XD.float()
        markov = F.embedding(previous_X, weights[self.last + "markov_head.embed.weight"])
        logits = F.linear(
            regions.rms_norm(hidden, weights[self.last + "norm.weight"]), self.target.weights["head.weight"]
        )
        logits = logits + F.linear(markov, weights[self.last + "markov_head.head.weight"])
        evidence = torch.cat((hidden, markov), -1)
        return logits, F.linear(evidence, weights[self.last + "confidence_head.proj.weight"]).squeeze(-1)
