"""A layer's weights as the model multiplies with them: cast once, and merged where inputs are shared.

Legend: D hidden · K head dim · N outputs · E experts · C hyper-connection coefficients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import EngramTable


class WeightSource:
    """Dequantised tensors by checkpoint name, cast to the model's dtype or to the one it accumulates in."""

    def __init__(self, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self._weights = weights
        self.dtype = dtype
        self.wide_dtype = torch.float64 if dtype == torch.float64 else torch.float32

    def __call__(self, name: str) -> Tensor:
        return self._weights[name].to(self.dtype).contiguous()

    def wide(self, name: str) -> Tensor:
        """For what stays in float32 (or float64): sinks, biases, router and hyper-connection weights."""
        return self._weights[name].to(self.wide_dtype).contiguous()

    def stacked(self, *names: str) -> Tensor:
        """One matrix with the outputs of all of them, one after the other."""
        return torch.cat([self(name) for name in names])


@dataclass(frozen=True)
class HyperWeights:
    fn_CX: Tensor  # X = streams · D
    base_C: Tensor
    scale_3: Tensor
    norm_D: Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """`down` is wq_a then wkv; `up` is wq_b then the indexer's wq_b; `raw` is what reads the unquantised input."""

    down_ND: Tensor
    q_norm: Tensor
    up_NR: Tensor
    kv_norm_K: Tensor
    sink_H: Tensor
    wo_a_GRK: Tensor
    wo_b_DR: Tensor
    raw_ND: Tensor | None
    compressor_norm_K: Tensor | None
    index_wk: Tensor | None
    index_k_norm: Tensor | None


@dataclass(frozen=True)
class ExpertWeights:
    """`w13` and `w2` have one matrix for each expert, or where experts are spread over ranks for each slot of this one."""

    gate_ED: Tensor
    bias_E: Tensor
    shared_w13: Tensor
    shared_w2: Tensor
    w13: tuple[Tensor, ...]
    w2: tuple[Tensor, ...]
    chosen: int


@dataclass(frozen=True)
class EngramWeights:
    table_RD: Tensor
    wkv_NF: Tensor
    q_ND: Tensor
    k_ND: Tensor
    multipliers_G: Tensor
    primes_OH: Tensor
    offsets_OH: Tensor


@dataclass(frozen=True)
class LayerWeights:
    attn_site: HyperWeights
    attention: AttentionWeights
    ffn_site: HyperWeights
    experts: ExpertWeights
    engram: EngramWeights | None


def trunk_layer(
    source: WeightSource,
    config: V41Config,
    layer: int,
    engram: EngramTable | None,
    experts: Sequence[int] | None = None,
) -> LayerWeights:
    """Layer `layer` of the trunk; `experts` are those in the slots of this rank, None all of them."""
    prefix = f"layers.{layer}."
    return LayerWeights(
        attn_site=_hyper(source, prefix, "attn"),
        attention=_attention(source, config, prefix, layer),
        ffn_site=_hyper(source, prefix, "ffn"),
        experts=_experts(source, prefix, experts, config.n_routed_experts, config.num_experts_per_tok),
        engram=None if engram is None else _engram(source, config, prefix, engram),
    )


def draft_layer(
    source: WeightSource, config: V41Config, number: int, experts: Sequence[int] | None = None
) -> LayerWeights:
    """Layer `number` of the draft module: a window-only layer with fewer experts; `experts` as in `trunk_layer`."""
    prefix = f"mtp.{number}."
    return LayerWeights(
        attn_site=_hyper(source, prefix, "attn"),
        attention=_attention(source, config, prefix, None),
        ffn_site=_hyper(source, prefix, "ffn"),
        experts=_experts(source, prefix, experts, config.dspark_n_routed_experts, config.dspark_num_experts_per_tok),
        engram=None,
    )


def _hyper(source: WeightSource, prefix: str, site: str) -> HyperWeights:
    return HyperWeights(
        fn_CX=source.wide(f"{prefix}hc_{site}_fn"),
        base_C=source.wide(f"{prefix}hc_{site}_base"),
        scale_3=source.wide(f"{prefix}hc_{site}_scale"),
        norm_D=source(f"{prefix}{site}_norm.weight"),
    )


def _attention(source: WeightSource, config: V41Config, prefix: str, layer: int | None) -> AttentionWeights:
    """`layer` None: a draft layer, which neither compresses nor indexes."""
    attn = prefix + "attn."
    compresses = layer is not None and layer in config.kv_source_layer_ids
    indexes = layer is not None and layer in config.index_source_layer_ids
    raw = [attn + "compressor.wkv.weight"] if compresses else []
    if compresses and layer is not None and config.ratio(layer) == 2:
        raw.append(attn + "compressor.wgate.weight")
    if indexes:
        raw.append(attn + "indexer.weights_proj.weight")
    up = [attn + "wq_b.weight"] + ([attn + "indexer.wq_b.weight"] if indexes else [])
    return AttentionWeights(
        down_ND=source.stacked(attn + "wq_a.weight", attn + "wkv.weight"),
        q_norm=source(attn + "q_norm.weight"),
        up_NR=source.stacked(*up),
        kv_norm_K=source(attn + "kv_norm.weight"),
        sink_H=source.wide(attn + "attn_sink"),
        wo_a_GRK=source(attn + "wo_a.weight").unflatten(0, (config.o_groups, config.o_lora_rank)),
        wo_b_DR=source(attn + "wo_b.weight"),
        raw_ND=source.stacked(*raw) if raw else None,
        compressor_norm_K=source(attn + "compressor.norm.weight") if compresses else None,
        index_wk=source(attn + "indexer.wk.weight") if compresses else None,
        index_k_norm=source(attn + "indexer.k_norm.weight") if compresses else None,
    )


def _experts(
    source: WeightSource, prefix: str, experts: Sequence[int] | None, num_experts: int, chosen: int
) -> ExpertWeights:
    ffn = prefix + "ffn."
    names = [f"{ffn}experts.{e}." for e in (range(num_experts) if experts is None else experts)]
    w2 = (source(name + "w2.weight") for name in names)
    return ExpertWeights(
        gate_ED=source.wide(ffn + "gate.weight"),
        bias_E=source.wide(ffn + "gate.bias"),
        shared_w13=source.stacked(ffn + "shared_experts.w1.weight", ffn + "shared_experts.w3.weight"),
        shared_w2=source(ffn + "shared_experts.w2.weight"),
        w13=tuple(source.stacked(name + "w1.weight", name + "w3.weight") for name in names),
        w2=tuple(w2) if experts is None else tuple(w.clone() for w in w2),  # slots are overwritten, each by itself
        chosen=chosen,
    )


def _engram(source: WeightSource, config: V41Config, prefix: str, table: EngramTable) -> EngramWeights:
    orders = config.engram_max_ngram_size - 1
    return EngramWeights(
        table_RD=source(prefix + "engram.embed.weight"),
        wkv_NF=source(prefix + "engram.wkv.weight"),
        q_ND=source(prefix + "engram.q_weight"),
        k_ND=source(prefix + "engram.k_weight"),
        multipliers_G=torch.tensor(table.multipliers),
        primes_OH=torch.tensor(table.primes).view(orders, -1),
        offsets_OH=torch.tensor(table.offsets).view(orders, -1),
    )
