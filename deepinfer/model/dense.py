"""The whole text model in one shot: masks instead of caches, plain torch, one sequence.

This is the oracle: it follows the published formulas line by line, shares nothing with the engine's caches and ops, and is
what training and the engine are compared with. Weights are dequantised tensors by their checkpoint names.

Legend: T tokens · J compressed entries · D hidden · N streams · H heads · K head dim · I index heads · E experts · V words.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer import formats
from deepinfer.arch.cache import Numerics
from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import EngramTable, engram_tables
from deepinfer.model.dense_parts import best_of, candidate_mask, engram_rows, hyper_coefficients, rotated

Weights = dict[str, Tensor]
Body = Callable[[Tensor], Tensor]


@dataclass
class DenseOutput:
    """`logits_TV` float32 or float64; `features_TF` are the draft module's inputs; `trace` holds what was looked at by name."""

    logits_TV: Tensor
    features_TF: Tensor
    trace: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Shared:
    """What a KV or index source leaves for the layers after it."""

    entries_JK: Tensor | None = None
    index_keys_JK: Tensor | None = None
    selected_TJ: Tensor | None = None
    candidates_TJ: Tensor | None = None


class DenseModel:
    """`model(ids)` runs a whole sequence. `numerics`: full (activations and caches quantised), kv (caches only), none."""

    def __init__(
        self,
        config: V41Config,
        weights: Weights,
        *,
        token_classes: np.ndarray,
        numerics: Numerics = "full",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.numerics, self.dtype = config, numerics, dtype
        self.weights = {name: weight.to(dtype) for name, weight in weights.items()}
        self.classes_V = torch.from_numpy(token_classes)
        self.engrams = {table.layer: table for table in engram_tables(config)}
        self.act = formats.fake_fp8_rows if numerics == "full" else _same
        caches = numerics != "none"
        self.window_format = formats.fake_window if caches else _same
        self.main_format = formats.fake_main if caches else _same
        self.index_format = formats.fake_index if caches else _same

    def __call__(self, ids: Tensor, *, window_floor: int = 0, floor_layer: int | None = None) -> DenseOutput:
        """All rows of int64 ids [T].

        `window_floor`: from `floor_layer` (default: the first ratio-1 layer) on, rows at or after this position see no window
        key before it. That is bounded replay as a mask, with window_floor = prompt length - keep.
        """
        c = self.config
        trace: dict[str, Tensor] = {}
        floor_layer = c.boundary if floor_layer is None else floor_layer
        x_TND = self.weights["embed.weight"][ids].unsqueeze(1).repeat(1, c.hc_mult, 1)
        mix_TN = F.one_hot(torch.zeros_like(ids), c.hc_mult).to(self.dtype)
        shared, features = Shared(), []
        for layer in range(c.num_hidden_layers):
            prefix = f"layers.{layer}."
            if layer in self.engrams:
                x_TND = self.engram(prefix, self.engrams[layer], ids, x_TND, trace)
            if layer in c.dspark_target_layer_ids:
                features.append(x_TND.mean(1))
            window_TT = self.window_mask(len(ids), window_floor if layer >= floor_layer else 0)

            def attend(u_TD: Tensor, layer: int = layer, window_TT: Tensor = window_TT) -> Tensor:
                return self.attention(layer, u_TD, window_TT, shared, trace)

            def experts(u_TD: Tensor, prefix: str = prefix, layer: int = layer) -> Tensor:
                return self.moe(prefix, u_TD, c.num_experts_per_tok, c.n_routed_experts, trace, layer)

            x_TND, mix_TN = self.site(prefix, "attn", x_TND, mix_TN, attend)
            x_TND, mix_TN = self.site(prefix, "ffn", x_TND, mix_TN, experts)
            trace[f"stream/{layer}"] = x_TND
        hidden_TD = torch.einsum("tn,tnd->td", mix_TN, x_TND)
        logits_TV = self.norm("norm", hidden_TD) @ self.weights["head.weight"].T
        return DenseOutput(logits_TV, torch.cat(features, -1) if features else hidden_TD[:, :0], trace)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return (
            x * (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * self.weights[f"{name}.weight"]
        )

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"])

    def site(self, prefix: str, site: str, x_TND: Tensor, mix_TN: Tensor, body: Body) -> tuple[Tensor, Tensor]:
        """One hyper-connection site: collapse with the previous site's A, run `body`, mix with this site's B and C."""
        read_TN, comb_TMN, write_TN = self.coefficients(f"{prefix}hc_{site}", x_TND)
        out_TD = body(self.norm(f"{prefix}{site}_norm", torch.einsum("tn,tnd->td", mix_TN, x_TND)))
        return write_TN.unsqueeze(-1) * out_TD.unsqueeze(1) + torch.einsum("tmn,tmd->tnd", comb_TMN, x_TND), read_TN

    def coefficients(self, name: str, x_TND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fn, base, scale = (self.weights[f"{name}_{part}"] for part in ("fn", "base", "scale"))
        return hyper_coefficients(self.config, x_TND.flatten(1), fn, base, scale)

    def window_mask(self, length: int, floor: int) -> Tensor:
        """bool [query, key]: the newest `sliding_window` positions, and none before `floor` for queries at or after it."""
        query, key = torch.arange(length).unsqueeze(1), torch.arange(length)
        return (key <= query) & (key > query - self.config.sliding_window) & ((key >= floor) | (query < floor))

    def attention(
        self, layer: int, x_TD: Tensor, window_TT: Tensor, shared: Shared, trace: dict[str, Tensor]
    ) -> Tensor:
        c, prefix = self.config, f"layers.{layer}.attn."
        compressed = c.ratio(layer) > 0
        positions = torch.arange(len(x_TD))
        quantised = self.act(x_TD)
        latent = self.norm(prefix + "q_norm", self.linear(prefix + "wq_a", quantised))
        q_THK = self.linear(prefix + "wq_b", self.act(latent)).unflatten(1, (c.num_attention_heads, c.head_dim))
        q_THK = rotated(self.config, q_THK, positions, compressed=compressed)
        key_TK = self.norm(prefix + "kv_norm", self.linear(prefix + "wkv", quantised))
        keys, mask = self.window_format(rotated(self.config, key_TK, positions, compressed=compressed)), window_TT
        if layer in c.kv_source_layer_ids:
            self.compress(layer, x_TD, shared)
        if layer in c.index_source_layer_ids:
            self.select(layer, x_TD, latent, shared)
            assert shared.selected_TJ is not None
            trace[f"topk/{layer}"] = shared.selected_TJ
        if compressed:
            assert shared.entries_JK is not None and shared.selected_TJ is not None
            keys, mask = torch.cat((keys, shared.entries_JK)), torch.cat((mask, shared.selected_TJ), 1)
        return self.attend(prefix, q_THK, keys, mask, positions, compressed)

    def attend(
        self, prefix: str, q_THK: Tensor, keys_SK: Tensor, mask_TS: Tensor, positions: Tensor, compressed: bool
    ) -> Tensor:
        """Softmax over keys and one sink per head, inverse rotation, grouped output projection."""
        c = self.config
        logits_HTS = torch.einsum("thk,sk->hts", q_THK, keys_SK) * c.head_dim**-0.5
        logits_HTS = logits_HTS.masked_fill(~mask_TS, -torch.inf)
        sink = self.weights[prefix + "attn_sink"].view(-1, 1, 1).expand(-1, len(q_THK), 1)
        weights_HTS = torch.cat((logits_HTS, sink), -1).softmax(-1)[..., :-1]
        out_THK = rotated(
            self.config,
            torch.einsum("hts,sk->thk", weights_HTS, keys_SK),
            positions,
            compressed=compressed,
            inverse=True,
        )
        wo_a = self.weights[prefix + "wo_a.weight"].unflatten(0, (c.o_groups, c.o_lora_rank))
        low_TR = torch.einsum("tgk,grk->tgr", out_THK.reshape(len(q_THK), c.o_groups, -1), wo_a).flatten(1)
        return self.linear(prefix + "wo_b", self.act(low_TR))

    def compress(self, layer: int, x_TD: Tensor, shared: Shared) -> None:
        """Main entries and index keys of a KV source: one per `ratio` tokens, at the position of the group's first token."""
        prefix, ratio = f"layers.{layer}.attn.", self.config.ratio(layer)
        value = self.linear(prefix + "compressor.wkv", x_TD)
        if ratio == 2:
            pairs = len(x_TD) // 2 * 2
            gate = self.linear(prefix + "compressor.wgate", x_TD)[:pairs].unflatten(0, (-1, 2)).softmax(1)
            value = (value[:pairs].unflatten(0, (-1, 2)) * gate).sum(1)
        latent_JK = self.norm(prefix + "compressor.norm", value)
        positions = torch.arange(len(latent_JK)) * ratio
        shared.entries_JK = self.main_format(rotated(self.config, latent_JK, positions, compressed=True))
        index = self.norm(prefix + "indexer.k_norm", self.linear(prefix + "indexer.wk", latent_JK))
        shared.index_keys_JK = self.index_format(rotated(self.config, index, positions, compressed=True))

    def select(self, layer: int, x_TD: Tensor, latent: Tensor, shared: Shared) -> None:
        """The best visible entries of every query: bool [T, J]."""
        c, prefix = self.config, f"layers.{layer}.attn.indexer."
        positions = torch.arange(len(x_TD))
        q_TIK = self.linear(prefix + "wq_b", self.act(latent)).unflatten(1, (c.index_n_heads, c.index_head_dim))
        q_TIK = self.index_format(rotated(self.config, q_TIK, positions, compressed=True))
        w_TI = self.linear(prefix + "weights_proj", x_TD) * (c.index_head_dim * c.index_n_heads) ** -0.5
        scores_TJ = torch.einsum("tij,ti->tj", torch.einsum("tik,jk->tij", q_TIK, shared.index_keys_JK).relu(), w_TI)
        visible_T = (positions + 1) // c.ratio(layer)
        visible_TJ = torch.arange(scores_TJ.shape[1]) < visible_T.unsqueeze(1)
        scores_TJ = scores_TJ.masked_fill(~visible_TJ, -torch.inf)
        if layer == c.candidate_source_layer_id:
            shared.candidates_TJ = candidate_mask(c, scores_TJ, visible_T)
        elif layer > c.candidate_source_layer_id:
            assert shared.candidates_TJ is not None
            scores_TJ = scores_TJ.masked_fill(~shared.candidates_TJ, -torch.inf)
        shared.selected_TJ = best_of(scores_TJ, c.index_topk)

    def moe(
        self,
        prefix: str,
        x_TD: Tensor,
        chosen: int,
        num_experts: int,
        trace: dict[str, Tensor] | None = None,
        layer: int = 0,
    ) -> Tensor:
        """Routed experts (bias chooses, unbiased scores weigh) plus the shared one."""
        c, prefix = self.config, prefix + "ffn."
        scores_TE = F.softplus(self.linear(prefix + "gate", x_TD)).sqrt()
        biased_TE = scores_TE + self.weights[prefix + "gate.bias"]
        picks_TX = biased_TE.sort(dim=-1, descending=True, stable=True).indices[:, :chosen]
        if trace is not None:
            trace[f"router/{layer}"] = picks_TX
        weights_TX = scores_TE.gather(1, picks_TX)
        weights_TX = c.routed_scaling_factor * weights_TX / (weights_TX.sum(-1, keepdim=True) + 1e-20)
        quantised = self.act(x_TD)
        out_TD = self.expert(prefix + "shared_experts", quantised, None)
        for expert in range(num_experts):
            rows, slots = (picks_TX == expert).nonzero(as_tuple=True)
            if len(rows):
                part = self.expert(f"{prefix}experts.{expert}", quantised[rows], weights_TX[rows, slots].unsqueeze(1))
                out_TD = out_TD.index_add(0, rows, part)
        return out_TD

    def expert(self, name: str, x_TD: Tensor, weight_T1: Tensor | None) -> Tensor:
        limit = self.config.swiglu_limit
        act = F.silu(self.linear(name + ".w1", x_TD).clamp(max=limit)) * self.linear(name + ".w3", x_TD).clamp(
            -limit, limit
        )
        return self.linear(name + ".w2", self.act(act if weight_T1 is None else act * weight_T1))

    def engram(self, prefix: str, table: EngramTable, ids: Tensor, x_TND: Tensor, trace: dict[str, Tensor]) -> Tensor:
        """Hashed n-gram rows, gated per stream, added to every stream."""
        c, prefix = self.config, prefix + "engram."
        rows_TR = engram_rows(c, table, self.classes_V[ids], int(self.classes_V[c.engram_pad_token_id]))
        memory = self.weights[prefix + "embed.weight"][rows_TR].flatten(1)
        key_value = self.linear(prefix + "wkv", self.act(memory)).unflatten(1, (c.hc_mult + 1, c.hidden_size))
        key_TND, value_TD = key_value[:, :-1], key_value[:, -1]
        dot_TN = (x_TND * self.weights[prefix + "q_weight"] * key_TND * self.weights[prefix + "k_weight"]).sum(-1)
        for side in (x_TND, key_TND):
            dot_TN = dot_TN * (side.square().mean(-1) + c.rms_norm_eps).rsqrt()
        dot_TN = dot_TN * c.hidden_size**-0.5
        gate_TN = (dot_TN.sign() * dot_TN.abs().clamp(min=1e-6).sqrt()).sigmoid()
        trace[f"engram_rows/{table.layer}"], trace[f"engram_gate/{table.layer}"] = rows_TR, gate_TN
        return x_TND + gate_TN.unsqueeze(-1) * value_TD.unsqueeze(1)


def _same(x: Tensor) -> Tensor:
    return x
