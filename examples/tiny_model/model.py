"""The batched training forward of the V4.1 architecture: packed rows, dense or top-k attention, optional fake quantisation.

It computes what the engine computes (a test holds the two together), in a form that trains fast: rows of packed documents,
window attention in bands of 128 queries × 256 keys, compressed keys under a mask, all experts at once.

Legend as in regions.py. Documents in a row never see each other: attention and n-grams are cut where a BOS token stands.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import EngramTable, engram_tables
from deepinfer.model.rope import inverse_frequencies
from examples.tiny_model import regions
from examples.tiny_model.attention import CHUNK, Attention, Layout, Mode
from examples.tiny_model.sinkhorn import sinkhorn

GRAPHS_PER_REGION = 32  # shapes × modes that one region may be compiled for


class Result(NamedTuple):
    hidden_BTD: Tensor  # float32, before the final norm
    load_LE: Tensor  # share of choices of each expert
    balance: Tensor  # router balance loss
    index_loss: Tensor
    features_BTF: Tensor | None = (
        None  # float32, what the draft module reads: stream means where its target layers begin
    )


class TrainingModel:
    """Stateless but for tables: weights are handed to every call, under the names of parameters.py."""

    def __init__(
        self, config: V41Config, classes_V: Tensor, device: torch.device, *, compiled: bool, dtype: torch.dtype
    ) -> None:
        assert config.sliding_window == CHUNK and config.num_experts_per_tok == 2 and len(config.engram_layer_ids) == 1
        self.config, self.device, self.dtype = config, device, dtype
        self.classes_V = classes_V.to(device)
        self.table: EngramTable = engram_tables(config)[0]
        self.bias_LE = torch.zeros(config.num_hidden_layers, config.n_routed_experts, device=device)
        self.compiled = compiled
        if compiled:
            torch._dynamo.config.recompile_limit = GRAPHS_PER_REGION
        self._regions: dict[str, Callable] = {}
        self._rope: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    def region(self, function: Callable) -> Callable:
        if not self.compiled:
            return function
        name = function.__name__
        if name not in self._regions:
            self._regions[name] = torch.compile(function, dynamic=False)
        return self._regions[name]

    def rope(self, tokens: int, compressed: bool) -> tuple[Tensor, Tensor]:
        key = (tokens, compressed)
        if key not in self._rope:
            frequencies = torch.from_numpy(inverse_frequencies(self.config, compressed=compressed))
            angles = torch.arange(tokens, dtype=torch.float64).unsqueeze(1) * frequencies
            self._rope[key] = (angles.cos().float().to(self.device), angles.sin().float().to(self.device))
        return self._rope[key]

    def layout(self, ids_BT: Tensor, floor_BT: Tensor | None) -> Layout:
        rows, tokens = ids_BT.shape
        chunks = tokens // CHUNK
        position = torch.arange(tokens, device=self.device)
        is_start = ids_BT == self.config.bos_token_id
        document = is_start.cumsum(1)
        start = torch.where(is_start, position, 0).cummax(1).values
        query = position.view(chunks, CHUNK)
        key = query[:, :1] - CHUNK + torch.arange(2 * CHUNK, device=self.device)
        distance = query.unsqueeze(2) - key.unsqueeze(1)
        in_band = (distance >= 0) & (distance < CHUNK) & (key >= 0).unsqueeze(1)
        key_document = document[:, key.clamp_min(0)]
        near = in_band & (document.view(rows, chunks, CHUNK, 1) == key_document.unsqueeze(2))
        near_upper = near
        if floor_BT is not None:
            floor = floor_BT.view(rows, chunks, CHUNK, 1)
            near_upper = near & ((key.unsqueeze(1) >= floor) | (query.unsqueeze(2) < floor))
        visible = {}
        for ratio in sorted({self.config.ratio(layer) for layer in range(self.config.num_hidden_layers)} - {0}):
            entry = torch.arange(tokens // ratio, device=self.device)
            complete = entry < ((position + 1) // ratio).unsqueeze(1)
            visible[ratio] = complete & (document.unsqueeze(2) == document[:, ::ratio].unsqueeze(1))
        return Layout(position - start, near, near_upper, visible)

    def engram_rows(self, ids_BT: Tensor, depth_BT: Tensor) -> Tensor:
        """Hash-table rows [B, T, orders]; slots before the document hold the pad token's class."""
        c, classes = self.config, self.classes_V[ids_BT]
        pad = self.classes_V[c.engram_pad_token_id]
        mixed, columns = classes * self.table.multipliers[0], []
        for back in range(1, c.engram_max_ngram_size):
            slot = torch.where(depth_BT >= back, F.pad(classes, (back, 0))[:, : classes.shape[1]], pad)
            mixed = mixed ^ (slot * self.table.multipliers[back])
            for head in range(c.engram_n_heads):
                column = (back - 1) * c.engram_n_heads + head
                columns.append(mixed % self.table.primes[column] + self.table.offsets[column])
        return torch.stack(columns, -1)

    def __call__(
        self,
        weights: dict[str, Tensor],
        ids_BT: Tensor,
        mode: Mode,
        floor_BT: Tensor | None = None,
        with_features: bool = False,
    ) -> Result:
        """`floor_BT`: lowest window position that the layers above the replay boundary may see, per token."""
        layout = self.layout(ids_BT, floor_BT)
        attention = Attention(self, weights, layout, mode)
        rows = self.engram_rows(ids_BT, layout.depth_BT)
        result = self.trunk(weights, ids_BT, rows, attention, mode.quantised, with_features)
        return result._replace(index_loss=attention.index_loss())

    def trunk(
        self,
        weights: dict[str, Tensor],
        ids_BT: Tensor,
        engram_rows: Tensor,
        attention: Callable[[int, Tensor], Tensor],
        quantised: bool,
        with_features: bool = False,
    ) -> Result:
        """All layers around `attention(layer, u_BTD)`. No index loss."""
        c = self.config
        x_BTND = weights["embed.weight"][ids_BT].to(self.dtype).unsqueeze(2).expand(-1, -1, c.hc_mult, -1).contiguous()
        read = torch.zeros(*ids_BT.shape, c.hc_mult, device=self.device)
        read[..., 0] = 1
        loads, balances, features = [], [], []
        for layer in range(c.num_hidden_layers):
            p = f"layers.{layer}."
            if layer in c.engram_layer_ids:
                memory = F.embedding(engram_rows, weights[p + "engram.embed.weight"]).flatten(2)
                parts = [weights[p + f"engram.{name}"] for name in ("wkv.weight", "q_weight", "k_weight")]
                x_BTND = self.region(regions.engram)(x_BTND, memory, *parts, quantised)
            if with_features and layer in c.dspark_target_layer_ids:
                features.append(x_BTND.float().mean(2))
            read, x_BTND = self.site(weights, p, "attn", x_BTND, read, lambda u, layer=layer: attention(layer, u))

            def expert_body(u: Tensor, layer: int = layer, p: str = p) -> Tensor:
                out, load, balance = self.experts(weights, p, self.bias_LE[layer], u, quantised)
                loads.append(load)
                balances.append(balance)
                return out

            read, x_BTND = self.site(weights, p, "ffn", x_BTND, read, expert_body)
        hidden = self.region(regions.stream_sum)(x_BTND, read)
        none = torch.zeros((), device=self.device)
        return Result(
            hidden, torch.stack(loads), sum(balances, none), none, torch.cat(features, -1) if with_features else None
        )

    def experts(
        self, weights: dict[str, Tensor], prefix: str, bias_E: Tensor, u_BTD: Tensor, quantised: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, load and balance loss of the experts under `prefix`."""
        parts = [weights[prefix + "ffn.gate.weight"], bias_E, weights[prefix + "ffn.w13"], weights[prefix + "ffn.w2"]]
        limits = (self.config.routed_scaling_factor, self.config.swiglu_limit)
        out, load, balance = self.region(regions.experts)(u_BTD, *parts, *limits, quantised)
        return out, load, balance

    def site(
        self, weights: dict[str, Tensor], prefix: str, name: str, x_BTND: Tensor, read: Tensor, body: Callable
    ) -> tuple[Tensor, Tensor]:
        """One hyper-connection site: this site's coefficients, the previous site's read weights."""
        parts = [weights[f"{prefix}hc_{name}_{part}"] for part in ("fn", "base", "scale")]
        next_read, write, comb = self.region(regions.coefficients)(x_BTND, *parts, self.config.hc_eps)
        comb = sinkhorn(comb, self.config.hc_sinkhorn_iters)
        out = body(self.region(regions.collapse)(x_BTND, read, weights[f"{prefix}{name}_norm.weight"]))
        return next_read, self.region(regions.post_mix)(x_BTND, out, write, comb)

    def losses(self, weights: dict[str, Tensor], hidden_BTD: Tensor, ids_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of predicting the next token, [B, T], and the most likely next token [B, T]."""
        targets = F.pad(ids_BT[:, 1:], (0, 1), value=self.config.pad_token_id)
        parts = (weights["norm.weight"], weights["head.weight"])
        losses, best = self.region(regions.token_losses)(hidden_BTD, *parts, targets, self.dtype)
        return losses.view(ids_BT.shape), best

    def logits(self, weights: dict[str, Tensor], hidden_BTD: Tensor) -> Tensor:
        normed = regions.rms_norm(hidden_BTD, weights["norm.weight"]).to(self.dtype)
        return regions.linear(normed, weights["head.weight"]).float()
