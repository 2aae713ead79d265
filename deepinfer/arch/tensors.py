"""The tensor table of a released V4.1 checkpoint: every name, dtype and shape follows from config.json."""

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from deepinfer.arch.config import V41Config, VisionConfig

Group = Literal["embed", "head", "dense", "experts", "engram", "draft", "vision"]
DTYPE_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
BLOCK = 32  # FP8 weights carry one power-of-two scale per 32 × 32 block, FP4 weights one per 32 columns


class TensorSpec(msgspec.Struct, frozen=True):
    """One stored tensor. `dtype` is the safetensors spelling; an I8 tensor packs two FP4 codes per byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    group: Group

    @property
    def nbytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def numel(self) -> int:
        """Stored elements counted unpacked: an FP4 byte holds two."""
        return math.prod(self.shape) * (2 if self.dtype == "I8" else 1)


def tensor_table(config: V41Config) -> list[TensorSpec]:
    """Every tensor of a checkpoint of this config, vision tower included where config.json describes one."""
    table = [
        TensorSpec("embed.weight", "BF16", (config.vocab_size, config.hidden_size), "embed"),
        TensorSpec("head.weight", "BF16", (config.vocab_size, config.hidden_size), "head"),
        TensorSpec("norm.weight", "BF16", (config.hidden_size,), "head"),
    ]
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        table += _block(config, prefix, config.n_routed_experts, "dense")
        table += _compression(config, prefix, layer)
        if layer in config.engram_layer_ids:
            table += _engram(config, prefix, layer)
    table += _draft(config)
    if config.vision is not None:
        table += _vision(config.vision, config.hidden_size)
    return table


def _fp8(name: str, out_dim: int, in_dim: int, group: Group) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", "F8_E4M3", (out_dim, in_dim), group)
    yield TensorSpec(f"{name}.scale", "F8_E8M0", (math.ceil(out_dim / BLOCK), math.ceil(in_dim / BLOCK)), group)


def _fp4(name: str, out_dim: int, in_dim: int, group: Group) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", "I8", (out_dim, in_dim // 2), group)
    yield TensorSpec(f"{name}.scale", "F8_E8M0", (out_dim, in_dim // BLOCK), group)


def _block(c: V41Config, prefix: str, num_experts: int, group: Group) -> list[TensorSpec]:
    """What every layer has, trunk or draft: two mHC sites, attention, router, experts."""
    hidden, heads, head_dim, streams = c.hidden_size, c.num_attention_heads, c.head_dim, c.hc_mult
    table = [TensorSpec(prefix + f"{site}_norm.weight", "BF16", (hidden,), group) for site in ("attn", "ffn")]
    rows = streams * (2 + streams)
    for site in ("attn", "ffn"):
        table.append(TensorSpec(prefix + f"hc_{site}_fn", "F32", (rows, streams * hidden), group))
        table.append(TensorSpec(prefix + f"hc_{site}_base", "F32", (rows,), group))
        table.append(TensorSpec(prefix + f"hc_{site}_scale", "F32", (3,), group))
    attn = prefix + "attn."
    table.append(TensorSpec(attn + "attn_sink", "F32", (heads,), group))
    table += _fp8(attn + "wq_a", c.q_lora_rank, hidden, group)
    table.append(TensorSpec(attn + "q_norm.weight", "BF16", (c.q_lora_rank,), group))
    table += _fp8(attn + "wq_b", heads * head_dim, c.q_lora_rank, group)
    table += _fp8(attn + "wkv", head_dim, hidden, group)
    table.append(TensorSpec(attn + "kv_norm.weight", "BF16", (head_dim,), group))
    table += _fp8(attn + "wo_a", c.o_groups * c.o_lora_rank, c.heads_per_group * head_dim, group)
    table += _fp8(attn + "wo_b", hidden, c.o_groups * c.o_lora_rank, group)
    ffn, inner = prefix + "ffn.", c.moe_intermediate_size
    table.append(TensorSpec(ffn + "gate.weight", "BF16", (num_experts, hidden), group))
    table += [TensorSpec(ffn + f"gate.{name}", "F32", (num_experts,), group) for name in ("bias", "bias_vl")]
    expert_group: Group = "experts" if group == "dense" else group
    for expert in range(num_experts):
        table += _fp4(ffn + f"experts.{expert}.w1", inner, hidden, expert_group)
        table += _fp4(ffn + f"experts.{expert}.w3", inner, hidden, expert_group)
        table += _fp4(ffn + f"experts.{expert}.w2", hidden, inner, expert_group)
    table += _fp8(ffn + "shared_experts.w1", inner, hidden, group)
    table += _fp8(ffn + "shared_experts.w3", inner, hidden, group)
    table += _fp8(ffn + "shared_experts.w2", hidden, inner, group)
    return table


def _compression(c: V41Config, prefix: str, layer: int) -> list[TensorSpec]:
    table: list[TensorSpec] = []
    compressor, indexer = prefix + "attn.compressor.", prefix + "attn.indexer."
    if layer in c.kv_source_layer_ids:
        table.append(TensorSpec(compressor + "wkv.weight", "BF16", (c.head_dim, c.hidden_size), "dense"))
        if c.ratio(layer) == 2:
            table.append(TensorSpec(compressor + "wgate.weight", "BF16", (c.head_dim, c.hidden_size), "dense"))
        table.append(TensorSpec(compressor + "norm.weight", "BF16", (c.head_dim,), "dense"))
        table.append(TensorSpec(indexer + "wk.weight", "BF16", (c.index_head_dim, c.head_dim), "dense"))
        table.append(TensorSpec(indexer + "k_norm.weight", "BF16", (c.index_head_dim,), "dense"))
    if layer in c.index_source_layer_ids:
        table += _fp8(indexer + "wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, "dense")
        table.append(TensorSpec(indexer + "weights_proj.weight", "BF16", (c.index_n_heads, c.hidden_size), "dense"))
    return table


def _engram(c: V41Config, prefix: str, layer: int) -> list[TensorSpec]:
    rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
    features = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    engram = prefix + "engram."
    table = [
        TensorSpec(engram + "embed.weight", "F8_E4M3", (rows, c.engram_head_dim), "engram"),
        TensorSpec(engram + "embed.scale", "F8_E8M0", (rows, c.engram_head_dim // BLOCK), "engram"),
    ]
    table += _fp8(engram + "wkv", c.hidden_size * (c.hc_mult + 1), features, "dense")
    table += [TensorSpec(engram + f"{side}_weight", "BF16", (c.hc_mult, c.hidden_size), "dense") for side in ("q", "k")]
    return table


def _draft(c: V41Config) -> list[TensorSpec]:
    table: list[TensorSpec] = []
    last = f"mtp.{c.num_nextn_predict_layers - 1}."
    for layer in range(c.num_nextn_predict_layers):
        table += _block(c, f"mtp.{layer}.", c.dspark_n_routed_experts, "draft")
    if not table:
        return table
    table += _fp8("mtp.0.main_proj", c.hidden_size, c.hidden_size * len(c.dspark_target_layer_ids), "draft")
    table.append(TensorSpec("mtp.0.main_norm.weight", "BF16", (c.hidden_size,), "draft"))
    table.append(TensorSpec(last + "norm.weight", "BF16", (c.hidden_size,), "draft"))
    for side in ("embed", "head"):
        table.append(
            TensorSpec(last + f"markov_head.{side}.weight", "BF16", (c.vocab_size, c.dspark_markov_rank), "draft")
        )
    table.append(
        TensorSpec(last + "confidence_head.proj.weight", "BF16", (1, c.hidden_size + c.dspark_markov_rank), "draft")
    )
    return table


def _vision(v: VisionConfig, text_hidden: int) -> list[TensorSpec]:
    hidden, merged = v.hidden_size, v.hidden_size * v.downsample_ratio**2
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("vision.patch_embed.proj.weight", (hidden, 3 * v.patch_size**2)),
        ("vision.patch_embed.proj.bias", (hidden,)),
    ]
    for layer in range(v.num_hidden_layers):
        block = f"vision.blocks.{layer}."
        shapes += [
            (block + "norm1.weight", (hidden,)),
            (block + "norm2.weight", (hidden,)),
            (block + "attn.wqkv.weight", (3 * hidden, hidden)),
            (block + "attn.wqkv.bias", (3 * hidden,)),
            (block + "attn.wo.weight", (hidden, hidden)),
            (block + "attn.wo.bias", (hidden,)),
            (block + "mlp.w1.weight", (2 * v.intermediate_size, hidden)),
            (block + "mlp.w2.weight", (hidden, v.intermediate_size)),
        ]
    shapes.append(("vision.norm.weight", (hidden,)))
    shapes += [
        ("aligner.w1.weight", (text_hidden, merged)),
        ("aligner.w1.bias", (text_hidden,)),
        ("aligner.w2.weight", (text_hidden, text_hidden)),
        ("aligner.w2.bias", (text_hidden,)),
    ]
    shapes += [(f"image_{name}", (text_hidden,)) for name in ("start", "end", "newline")]
    return [TensorSpec(name, "BF16", shape, "vision") for name, shape in shapes]
