"""A trunk layer's weights as the release stores them, prepared for the fused operations; nothing is expanded.

Legend: D hidden · K head dim · N outputs · E experts · N streams of [N, D] · R, A rows of a table · G scales of a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import EngramTable
from deepinfer.formats.scales import working_dtype
from deepinfer.model.checkpoint.storage import scale_name
from deepinfer.model.fused.host_memory import readable_on_host
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.hyper_border import SiteWeights


class StoredSource:
    """Stored tensors by released name, scales included, brought to the device and into the order of its kernels."""

    def __init__(self, stored: Mapping[str, Tensor], ops: DeviceOps, device: torch.device, dtype: torch.dtype) -> None:
        self._stored, self.ops, self.device, self.dtype = stored, ops, device, dtype
        self.wide_dtype = working_dtype(dtype)

    def plain(self, *names: str) -> Tensor:
        """In the model's dtype; of several names the outputs one after the other."""
        return torch.cat([self._stored[name].to(self.device, self.dtype) for name in names])

    def wide(self, name: str) -> Tensor:
        """float32 (or float64): sinks, biases and hyper-connection weights."""
        return self._stored[name].to(self.device, self.wide_dtype)

    def fp8(self, *names: str) -> object:
        """A dense FP8 weight, prepared; of several names the outputs one after the other."""
        codes, scales = (torch.cat(parts) for parts in zip(*(self.bytes(name) for name in names)))
        inner = [len(self._stored[name]) for name in names[:-1]]
        assert not any(rows % 32 for rows in inner), "blocks of 32 outputs do not reach from one weight into the next"
        return self.ops.prepare_fp8_weight(Fp8Weight(codes.view(torch.float8_e4m3fn), scales))

    def experts(self, experts: list[str], *names: str) -> Fp4Experts:
        """MXFP4 weights of all experts, of several names the outputs one after the other."""
        stacked = [[torch.cat(parts) for parts in zip(*(self.bytes(e + name) for name in names))] for e in experts]
        codes, scales = (torch.stack(parts) for parts in zip(*stacked))
        return Fp4Experts(codes, scales)

    def bytes(self, name: str, *, on_host: bool = False) -> tuple[Tensor, Tensor]:
        """Codes and scales, both uint8; `on_host`: in memory of the host that the device reads."""
        pair = self._stored[name].view(torch.uint8), self._stored[scale_name(name)].view(torch.uint8)
        codes, scale = (readable_on_host(x, self.device) if on_host else x.to(self.device) for x in pair)
        return codes, scale


@dataclass(frozen=True)
class FusedSite:
    site: object
    norm_D: Tensor


@dataclass(frozen=True)
class FusedAttentionWeights:
    """`down` is wq_a then wkv; `raw` is what reads the unquantised input, the indexer's weights last."""

    down: object
    q_norm: Tensor
    up: object
    index_up: object | None
    kv_norm_K: Tensor
    sink_H: Tensor
    wo_a: object
    wo_b: object
    raw_ND: Tensor | None
    compressor_norm_K: Tensor | None
    index_wk: Tensor | None
    index_k_norm: Tensor | None


@dataclass(frozen=True)
class FusedExpertWeights:
    """`w13` and `w2` are of the `num_experts` that are here; the router chooses among all."""

    gate_ED: Tensor
    bias_E: Tensor
    shared_w13: object
    shared_w2: object
    w13: object
    w2: object
    num_experts: int
    chosen: int


@dataclass(frozen=True)
class FusedEngramWeights:
    codes_AK: Tensor
    powers_AG: Tensor
    wkv: object
    q_ND: Tensor
    k_ND: Tensor
    multipliers_G: Tensor
    primes_OH: Tensor
    offsets_OH: Tensor


def fused_site(source: StoredSource, prefix: str, site: str) -> FusedSite:
    parts = (source.wide(f"{prefix}hc_{site}_{part}") for part in ("fn", "base", "scale"))
    return FusedSite(source.ops.prepare_hyper_site(SiteWeights(*parts)), source.plain(f"{prefix}{site}_norm.weight"))


def fused_attention(source: StoredSource, config: V41Config, prefix: str, layer: int) -> FusedAttentionWeights:
    attn = prefix + "attn."
    compresses, indexes = layer in config.kv_source_layer_ids, layer in config.index_source_layer_ids
    raw = [attn + "compressor.wkv.weight"] if compresses else []
    if compresses and config.ratio(layer) == 2:
        raw.append(attn + "compressor.wgate.weight")
    if indexes:
        raw.append(attn + "indexer.weights_proj.weight")
    return FusedAttentionWeights(
        down=source.fp8(attn + "wq_a.weight", attn + "wkv.weight"),
        q_norm=source.plain(attn + "q_norm.weight"),
        up=source.fp8(attn + "wq_b.weight"),
        index_up=source.fp8(attn + "indexer.wq_b.weight") if indexes else None,
        kv_norm_K=source.plain(attn + "kv_norm.weight"),
        sink_H=source.wide(attn + "attn_sink"),
        wo_a=source.fp8(attn + "wo_a.weight"),
        wo_b=source.fp8(attn + "wo_b.weight"),
        raw_ND=source.plain(*raw) if raw else None,
        compressor_norm_K=source.plain(attn + "compressor.norm.weight") if compresses else None,
        index_wk=source.plain(attn + "indexer.wk.weight") if compresses else None,
        index_k_norm=source.plain(attn + "indexer.k_norm.weight") if compresses else None,
    )


def fused_experts(source: StoredSource, prefix: str, held: Sequence[int], chosen: int) -> FusedExpertWeights:
    """`held`: the routed experts that are here, in the order of their slots."""
    ffn = prefix + "ffn."
    experts = [f"{ffn}experts.{e}." for e in held]
    return FusedExpertWeights(
        gate_ED=source.plain(ffn + "gate.weight"),
        bias_E=source.wide(ffn + "gate.bias"),
        shared_w13=source.fp8(ffn + "shared_experts.w1.weight", ffn + "shared_experts.w3.weight"),
        shared_w2=source.fp8(ffn + "shared_experts.w2.weight"),
        w13=source.ops.prepare_experts_up(source.experts(experts, "w1.weight", "w3.weight")),
        w2=source.ops.prepare_experts(source.experts(experts, "w2.weight")),
        num_experts=len(held),
        chosen=chosen,
    )


def fused_engram(
    source: StoredSource, config: V41Config, prefix: str, table: EngramTable, *, on_host: bool = False
) -> FusedEngramWeights:
    """`on_host`: the table stays in the host's memory, where the device reads it."""
    orders = config.engram_max_ngram_size - 1
    codes, powers = source.bytes(prefix + "engram.embed.weight", on_host=on_host)
    return FusedEngramWeights(
        codes_AK=codes.view(torch.float8_e4m3fn),
        powers_AG=powers,
        wkv=source.fp8(prefix + "engram.wkv.weight"),
        q_ND=source.plain(prefix + "engram.q_weight"),
        k_ND=source.plain(prefix + "engram.k_weight"),
        multipliers_G=torch.tensor(table.multipliers, device=source.device),
        primes_OH=torch.tensor(table.primes, device=source.device).view(orders, -1),
        offsets_OH=torch.tensor(table.offsets, device=source.device).view(orders, -1),
    )
