"""Whether the layer lists of a config describe one sharing scheme, and its widths fill whole quantisation groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.arch.config import V41Config


def topology_problems(c: V41Config) -> list[str]:
    """One sentence for each thing that cannot be."""
    problems: list[str] = []
    layers, total = c.num_hidden_layers, c.num_window_layers

    def need(ok: bool, sentence: str) -> None:
        if not ok:
            problems.append(sentence)

    need(
        len(c.compress_ratios) == total,
        f"compress_ratios has {len(c.compress_ratios)} entries for {layers} layers + {c.num_nextn_predict_layers} draft layers",
    )
    if problems:
        return problems
    trunk = c.compress_ratios[:layers]
    need(set(trunk) <= {0, 1, 2}, f"compress_ratios holds {sorted(set(trunk))}; only 0, 1 and 2 exist")
    need(not any(c.compress_ratios[layers:]), "draft layers must have compress ratio 0")
    need(set(c.kv_source_layer_ids) <= set(c.index_source_layer_ids), "every KV source must also be an index source")
    for layer, ratio in enumerate(trunk):
        source, index = c.kv_source(layer), c.index_source(layer)
        if ratio and (source is None or index is None):
            problems.append(f"layer {layer} has ratio {ratio} but no KV and index source at or before it")
        elif source is not None and trunk[source] != ratio:
            problems.append(f"layer {layer} (ratio {ratio}) reads the keys of layer {source} (ratio {trunk[source]})")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        ids = getattr(c, name)
        need(
            list(ids) == sorted(set(ids)) and all(0 <= i < layers and trunk[i] for i in ids),
            f"{name} {list(ids)} must rise and name compressed layers",
        )
    need(c.candidate_source_layer_id in c.kv_source_layer_ids, "candidate_source_layer_id must be a KV source")
    need(
        (c.candidate_topk_blocks - 1) * c.candidate_block_size + 1 >= c.index_topk,
        "candidate blocks can hold fewer entries than index_topk",
    )
    need(
        len(c.engram_layer_ids) == len(c.engram_num_embeddings),
        "engram_layer_ids and engram_num_embeddings differ in length",
    )
    need(
        all(0 <= i < min(layers, c.boundary) for i in c.engram_layer_ids),
        "engram layers must lie below the first ratio-1 layer",
    )
    need(
        all(0 <= i < layers for i in c.dspark_target_layer_ids),
        "dspark_target_layer_ids names a layer that does not exist",
    )
    need(c.num_attention_heads % c.o_groups == 0, "num_attention_heads is not divisible by o_groups")
    need(
        0 < c.qk_rope_head_dim <= min(c.head_dim, c.index_head_dim) and c.qk_rope_head_dim % 2 == 0,
        "qk_rope_head_dim must be even and fit both head dims",
    )
    need(c.num_experts_per_tok <= c.n_routed_experts, "num_experts_per_tok exceeds n_routed_experts")
    need(
        c.dspark_num_experts_per_tok <= c.dspark_n_routed_experts,
        "dspark_num_experts_per_tok exceeds dspark_n_routed_experts",
    )
    for name in (
        "hidden_size",
        "head_dim",
        "index_head_dim",
        "q_lora_rank",
        "moe_intermediate_size",
        "engram_head_dim",
    ):
        need(getattr(c, name) % 32 == 0, f"{name} {getattr(c, name)} is not a multiple of the quantisation group 32")
    low_rank = c.o_groups * c.o_lora_rank
    need(low_rank % 32 == 0, f"o_groups * o_lora_rank = {low_rank} is not a multiple of the quantisation group 32")
    return problems
