"""Estimate of what a step needs beside weights and caches: the largest buffers alive together, not a measurement."""

from deepinfer.arch.cache import DTYPE_ITEMSIZE
from deepinfer.arch.config import V41Config
from deepinfer.config.specs import Scheduler
from deepinfer.plan.types import Drafting, Numerics

SCORE_BYTES_CAP = 2**30  # index scores are computed in chunks of at most this
FUSED_SCORE_BYTES_CAP = 256 << 20  # of fused operations
LIBRARY_BYTES = 32 << 20  # that torch's BLAS keeps for itself on a GPU
FLOAT_BYTES = 4  # logits, scores and row numbers
LOGIT_COPIES = 2  # raw and processed


def workspace_bytes(
    config: V41Config,
    numerics: Numerics,
    scheduler: Scheduler,
    drafting: Drafting,
    *,
    max_model_len: int,
    gathers: bool,
) -> int:
    """Bytes of one rank's activations at the largest step that the scheduler may form.

    `gathers` says that attention first copies every row's keys side by side, as the torch twin does.
    """
    itemsize = DTYPE_ITEMSIZE[numerics.dtype]
    rows = scheduler.max_num_batched_tokens
    sampled = min(rows, scheduler.max_num_seqs * (1 + drafting.depth))
    streams = rows * config.hc_mult * config.hidden_size * itemsize * 2  # before and after a site
    heads = rows * config.num_attention_heads * config.head_dim * itemsize * 2  # queries and outputs
    keys = config.sliding_window + config.index_topk
    gathered = rows * keys * (config.head_dim * itemsize + config.num_attention_heads * FLOAT_BYTES) if gathers else 0
    experts = (
        rows * (config.num_experts_per_tok + 1) * (2 * config.moe_intermediate_size + config.hidden_size) * itemsize
    )
    scores = min(SCORE_BYTES_CAP, rows * max_model_len * FLOAT_BYTES)
    logits = sampled * config.vocab_size * FLOAT_BYTES * LOGIT_COPIES
    return streams + max(heads + gathered, heads + scores, experts) + logits


def fused_workspace_bytes(
    config: V41Config, numerics: Numerics, scheduler: Scheduler, drafting: Drafting, *, max_model_len: int, graphs: bool
) -> int:
    """The same of a model of fused operations, with what its graphs of decode steps keep for themselves."""
    itemsize = DTYPE_ITEMSIZE[numerics.dtype]
    sampled = scheduler.max_num_seqs * (1 + drafting.depth)
    eager = _fused_rows(config, max(scheduler.max_num_batched_tokens, 1), itemsize, max_model_len)
    logits = min(scheduler.max_num_batched_tokens, sampled) * config.vocab_size * FLOAT_BYTES
    eager += logits * LOGIT_COPIES + LIBRARY_BYTES
    if not graphs:
        return eager
    features = 2 * len(config.dspark_target_layer_ids) * config.hidden_size if drafting.num_draft_layers else 0
    kept = sampled * (config.hidden_size + features) * itemsize
    return eager + _fused_rows(config, sampled, itemsize, max_model_len) + kept


def _fused_rows(config: V41Config, rows: int, itemsize: int, max_model_len: int) -> int:
    """What is alive at once in the layer that takes most: streams before and after a site, and attention or experts."""
    c, hidden = config, config.hidden_size
    streams = rows * hidden * itemsize * (2 * c.hc_mult + 3)  # and a site's output, its norm, and that on the FP8 grid
    lists = rows * FLOAT_BYTES * (2 * c.sliding_window + 2 * c.index_topk + c.candidate_topk_blocks)
    offered = c.candidate_topk_blocks * c.candidate_block_size if c.index_source_layer_ids else 0
    scores = min(FUSED_SCORE_BYTES_CAP, rows * max(max_model_len, offered) * FLOAT_BYTES)
    latents = rows * itemsize * (2 * c.q_lora_rank + c.head_dim + 2 * c.index_n_heads * c.index_head_dim)
    heads = rows * itemsize * 2 * c.num_attention_heads * c.head_dim  # queries and outputs
    pairs = rows * c.num_experts_per_tok
    experts = pairs * itemsize * (c.moe_intermediate_size + hidden) + rows * itemsize * 3 * c.moe_intermediate_size
    return streams + lists + max(latents + scores, latents + heads, experts)
