"""The trained tensors: shapes and starting values. Names are the checkpoint's, experts stacked.

Experts of a layer are stacked so that all of them run as one product: `ffn.w13` [experts + 1, 2, inner, hidden] holds gate and
up projections, `ffn.w2` [experts + 1, hidden, inner]; the last slice is the shared expert.
"""

from typing import Protocol

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config

EMBEDDING_STD = 0.5
HEAD_STD = 0.02
ENGRAM_STD = 0.5
COMB_BASE = 3.0


class Normal(Protocol):
    """Draws a tensor of this standard deviation and shape."""

    def __call__(self, std: float, *shape: int) -> Tensor: ...


def initial_weights(config: V41Config, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Fresh float32 tensors by name, drawn on the CPU so that every device starts from the same numbers."""
    generator = torch.Generator().manual_seed(seed)

    def normal(std: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    hidden = config.hidden_size
    weights = {
        "embed.weight": normal(EMBEDDING_STD, config.vocab_size, hidden),
        "head.weight": normal(HEAD_STD, config.vocab_size, hidden),
        "norm.weight": torch.ones(hidden),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        weights |= {prefix + name: value for name, value in _attention(config, layer, normal).items()}
        weights |= {prefix + name: value for name, value in _experts(config, config.n_routed_experts, normal).items()}
        weights |= {prefix + name: value for name, value in _sites(config, layer).items()}
        if layer in config.engram_layer_ids:
            weights |= {prefix + name: value for name, value in _engram(config, layer, normal).items()}
    return {name: value.to(device).requires_grad_(True) for name, value in weights.items()}


def initial_draft_weights(config: V41Config, target: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Fresh float32 tensors of the draft module, on the target's device; its last norm starts as the target's."""
    generator = torch.Generator().manual_seed(seed)

    def normal(std: float, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * std

    hidden, rank, features = config.hidden_size, config.dspark_markov_rank, len(config.dspark_target_layer_ids)
    weights: dict[str, Tensor] = {}
    for number in range(config.num_nextn_predict_layers):
        prefix = f"mtp.{number}."
        parts = _attention(config, config.num_hidden_layers + number, normal) | _sites(config, number)
        parts |= _experts(config, config.dspark_n_routed_experts, normal)
        weights |= {prefix + name: value for name, value in parts.items()}
    last = f"mtp.{config.num_nextn_predict_layers - 1}."
    weights |= {
        "mtp.0.main_proj.weight": normal((features * hidden) ** -0.5, hidden, features * hidden),
        "mtp.0.main_norm.weight": torch.ones(hidden),
        last + "norm.weight": target["norm.weight"].detach().clone(),
        last + "markov_head.embed.weight": normal(0.3, config.vocab_size, rank),
        last + "markov_head.head.weight": torch.zeros(config.vocab_size, rank),
        last + "confidence_head.proj.weight": torch.zeros(1, hidden + rank),
    }
    device = target["norm.weight"].device
    return {name: value.to(device).requires_grad_(True) for name, value in weights.items()}


def _attention(c: V41Config, layer: int, normal: Normal) -> dict[str, Tensor]:
    hidden, output_gain = c.hidden_size, (2 * c.num_hidden_layers) ** -0.5
    group_width, low = c.heads_per_group * c.head_dim, c.o_groups * c.o_lora_rank
    tensors = {
        "attn.wq_a.weight": normal(hidden**-0.5, c.q_lora_rank, hidden),
        "attn.q_norm.weight": torch.ones(c.q_lora_rank),
        "attn.wq_b.weight": normal(c.q_lora_rank**-0.5, c.num_attention_heads * c.head_dim, c.q_lora_rank),
        "attn.wkv.weight": normal(hidden**-0.5, c.head_dim, hidden),
        "attn.kv_norm.weight": torch.ones(c.head_dim),
        "attn.attn_sink": torch.zeros(c.num_attention_heads),
        "attn.wo_a.weight": normal(group_width**-0.5, low, group_width),
        "attn.wo_b.weight": normal(low**-0.5 * output_gain, hidden, low),
    }
    if layer in c.kv_source_layer_ids:
        tensors["attn.compressor.wkv.weight"] = normal(hidden**-0.5, c.head_dim, hidden)
        tensors["attn.compressor.norm.weight"] = torch.ones(c.head_dim)
        if c.ratio(layer) == 2:
            tensors["attn.compressor.wgate.weight"] = normal(0.3 * hidden**-0.5, c.head_dim, hidden)
        tensors["attn.indexer.wk.weight"] = normal(c.head_dim**-0.5, c.index_head_dim, c.head_dim)
        tensors["attn.indexer.k_norm.weight"] = torch.ones(c.index_head_dim)
    if layer in c.index_source_layer_ids:
        width = c.index_n_heads * c.index_head_dim
        tensors["attn.indexer.wq_b.weight"] = normal(c.q_lora_rank**-0.5, width, c.q_lora_rank)
        tensors["attn.indexer.weights_proj.weight"] = normal(hidden**-0.5, c.index_n_heads, hidden)
    return tensors


def _experts(c: V41Config, num_routed: int, normal: Normal) -> dict[str, Tensor]:
    hidden, inner, count = c.hidden_size, c.moe_intermediate_size, num_routed + 1
    output_gain = 0.7 * (2 * c.num_hidden_layers) ** -0.5
    return {
        "ffn.gate.weight": normal(hidden**-0.5, num_routed, hidden),
        "ffn.w13": normal(hidden**-0.5, count, 2, inner, hidden),
        "ffn.w2": normal(inner**-0.5 * output_gain, count, hidden, inner),
    }


def _sites(c: V41Config, layer: int) -> dict[str, Tensor]:
    """Hyper-connection sites start as a plain residual network: read and write one stream, keep the streams apart."""
    n, hidden = c.hc_mult, c.hidden_size
    comb = torch.full((n, n), -COMB_BASE).fill_diagonal_(COMB_BASE).flatten()
    read = torch.full((n,), -COMB_BASE)
    read[layer % n] = COMB_BASE
    base = torch.cat((read, torch.zeros(n), comb))
    tensors = {}
    for site in ("attn", "ffn"):
        tensors[f"hc_{site}_fn"] = torch.zeros(n * (2 + n), n * hidden)
        tensors[f"hc_{site}_base"] = base.clone()
        tensors[f"hc_{site}_scale"] = torch.full((3,), 0.01)
        tensors[f"{site}_norm.weight"] = torch.ones(hidden)
    return tensors


def _engram(c: V41Config, layer: int, normal: Normal) -> dict[str, Tensor]:
    rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
    features = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    return {
        "engram.embed.weight": normal(ENGRAM_STD, rows, c.engram_head_dim),
        "engram.wkv.weight": normal(0.5 * features**-0.5, (c.hc_mult + 1) * c.hidden_size, features),
        "engram.q_weight": torch.ones(c.hc_mult, c.hidden_size),
        "engram.k_weight": torch.ones(c.hc_mult, c.hidden_size),
    }


def is_slow(name: str) -> bool:
    """Tensors that learn at 0.3 of the rate: mixing coefficients, sinks, routers."""
    return "hc_" in name or "attn_sink" in name or "ffn.gate" in name


def decays(name: str, weight: Tensor) -> bool:
    """Weight decay is for matrices that multiply; not for norms, tables, mixing or the router."""
    return (
        weight.ndim >= 2
        and not is_slow(name)
        and "embed" not in name
        and "q_weight" not in name
        and "k_weight" not in name
    )
