"""Estimate of what a step needs beside weights and caches: the largest buffers alive together, not a measurement."""

from deepinfer.arch.cache import DTYPE_ITEMSIZE
from deepinfer.arch.config import V41Config
from deepinfer.config.specs import Scheduler
from deepinfer.plan.types import Drafting, Numerics

SCORE_BYTES_CAP = 2**30  # index scores are computed in chunks of at most this
FLOAT_BYTES = 4  # logits and scores are float32
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
