"""Whether the numbers of a config can mean anything at all: counts from one on, finite factors, token ids in the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.arch.config import V41Config

COUNTS = (
    "vocab_size hidden_size num_hidden_layers max_position_embeddings num_attention_heads head_dim qk_rope_head_dim "
    "q_lora_rank o_groups o_lora_rank sliding_window index_n_heads index_head_dim index_topk candidate_topk_blocks "
    "candidate_block_size moe_intermediate_size n_routed_experts num_experts_per_tok hc_mult hc_sinkhorn_iters"
).split()
ENGRAM_COUNTS = "engram_vocab_size engram_n_heads engram_head_dim engram_compressed_vocab_size".split()
DRAFT_COUNTS = "dspark_block_size dspark_markov_rank dspark_n_routed_experts dspark_num_experts_per_tok".split()
FACTORS = "rope_theta compress_rope_theta routed_scaling_factor swiglu_limit".split()  # above zero
EPSILONS = "rms_norm_eps hc_eps".split()  # zero or more
TOKENS = "bos_token_id eos_token_id pad_token_id".split()
MOST = 2**31  # of any count: what an index on a device can hold
MOST_SINKHORN_ITERS = 1000


def range_problems(c: V41Config) -> list[str]:
    """One sentence for each number that cannot be."""
    return [*_counts(c), *_factors(c), *_tokens(c), *_lengths(c)]


def _counts(c: V41Config) -> Iterator[str]:
    names = [
        *COUNTS,
        *(ENGRAM_COUNTS if c.engram_layer_ids else ()),
        *(DRAFT_COUNTS if c.num_nextn_predict_layers else ()),
    ]
    for name in names:
        if not 1 <= getattr(c, name) <= MOST:
            yield f"{name} is {getattr(c, name)}; it must be at least 1 and at most {MOST}"
    if c.num_nextn_predict_layers < 0:
        yield f"num_nextn_predict_layers is {c.num_nextn_predict_layers}; it must be at least 0"
    if c.hc_sinkhorn_iters > MOST_SINKHORN_ITERS:
        yield f"hc_sinkhorn_iters is {c.hc_sinkhorn_iters}; more than {MOST_SINKHORN_ITERS} rounds change nothing"
    if c.engram_layer_ids and not 2 <= c.engram_max_ngram_size <= 8:
        yield f"engram_max_ngram_size is {c.engram_max_ngram_size}; it must be from 2 to 8"
    if any(rows < 1 for rows in c.engram_num_embeddings):
        yield f"engram_num_embeddings is {list(c.engram_num_embeddings)}; every table needs a row"


def _factors(c: V41Config) -> Iterator[str]:
    values = {name: getattr(c, name) for name in FACTORS}
    values |= {f"rope_scaling.{name}": getattr(c.rope_scaling, name) for name in c.rope_scaling.__struct_fields__}
    for name, value in values.items():
        if not 0 < value < math.inf:
            yield f"{name} is {value}; it must be a finite number above 0"
    for name in EPSILONS:
        if not 0 <= getattr(c, name) < 1:
            yield f"{name} is {getattr(c, name)}; it must be from 0 to 1"


def _tokens(c: V41Config) -> Iterator[str]:
    names = [*TOKENS, *(["engram_pad_token_id"] if c.engram_layer_ids else [])]
    names += ["dspark_noise_token_id"] if c.num_nextn_predict_layers else []
    for name in names:
        if not 0 <= getattr(c, name) < c.vocab_size:
            yield f"{name} is {getattr(c, name)}; the vocabulary has {c.vocab_size} tokens"


def _lengths(c: V41Config) -> Iterator[str]:
    longest = c.max_position_embeddings
    if c.sliding_window > longest:
        yield f"sliding_window is {c.sliding_window}; max_position_embeddings is {longest}"
    for name, entries in (
        ("index_topk", c.index_topk),
        ("candidate_topk_blocks * candidate_block_size", c.candidate_topk_blocks * c.candidate_block_size),
    ):
        if entries > longest:
            yield f"{name} is {entries}; a sequence has at most {longest} entries"
