"""What a step needs beside weights and caches: the largest buffers alive together, reckoned and not measured."""

from msgspec import Struct

from deepinfer.arch.cache import DTYPE_ITEMSIZE, CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.arch.kernel_widths import is_fast
from deepinfer.config.specs import Scheduler
from deepinfer.plan.fused_step import StepShape, forward_bytes
from deepinfer.plan.types import Drafting, Numerics

SCORE_BYTES_CAP = 2**30  # index scores are computed in chunks of at most this
CHUNK_ROWS = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)  # for which steps with chunks become graphs
KERNEL_BYTES = (8 << 22) + (1 << 18)  # that kernels of products share: sums of their segments, and arrivals
POOL_BYTES = 22 << 20  # of each memory of graphs: a piece of its own for small tensors, and whole pages for large ones
POOL_SHARE = 1.15  # what that of forward passes takes over what lives in it at once, measured on an H200
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


class FusedWorkspace(Struct, frozen=True, kw_only=True):
    """Bytes of a rank beside weights, caches and what is known of sequences. `kept` between steps: the memory of graphs, what
    they leave their results in, spare rows, what kernels share. `step`: what the largest step has besides.
    """

    kept: int
    step: int


class FusedSizes(Struct, frozen=True, kw_only=True):
    """`slots`: sequences that run; `load`: pairs of a row and an expert that the rank gets over those of its own rows."""

    slots: int
    batched_tokens: int
    max_model_len: int
    load: float
    graphs: bool


def fused_workspace(
    config: V41Config, cache: CacheLayout, numerics: Numerics, drafting: Drafting, sizes: FusedSizes
) -> FusedWorkspace:
    """Of a model of fused operations. Graphs of all kinds of forward passes share the memory of the largest."""
    itemsize, drafts = DTYPE_ITEMSIZE[numerics.dtype], bool(drafting.num_draft_layers)
    entries = -(-sizes.max_model_len // cache.block_tokens) * cache.block_tokens

    def forward(rows: int, far: bool) -> int:
        shape = StepShape(rows=rows, entries=entries, far=far, features=drafts, load=sizes.load)
        return forward_bytes(config, shape, itemsize)

    verified = sizes.slots * (1 + drafting.verify_length)
    most = max(1, sizes.batched_tokens)
    logits = verified * (config.vocab_size * FLOAT_BYTES + 2 * config.hidden_size * itemsize)
    if not sizes.graphs:
        return FusedWorkspace(kept=0, step=forward(max(most, verified), far=True) + logits)
    chunks = next((rows for rows in CHUNK_ROWS if rows >= most), CHUNK_ROWS[-1])
    largest = max(chunks, verified)
    outputs = (chunks + verified) * config.hidden_size * itemsize
    spare = -(-chunks // cache.ring_slots) * cache.padded_state_bytes
    pools = int(POOL_SHARE * forward(largest, far=False)) + (2 + drafts) * POOL_BYTES
    kept = pools + outputs + spare + logits + _drafting(config, drafting, sizes.slots, itemsize)
    kept += KERNEL_BYTES * is_fast("bf16_linear", config)
    eager = most > chunks or numerics.replay == "compact"  # no graph takes such steps
    return FusedWorkspace(kept=kept, step=max(forward(largest, far=False), forward(most, far=True) if eager else 0))


def _drafting(config: V41Config, drafting: Drafting, slots: int, itemsize: int) -> int:
    """Of a round for all sequences: logits of every draft, and the rows of their blocks."""
    if not drafting.num_draft_layers:
        return 0
    rows = slots * config.dspark_block_size
    logits = slots * drafting.depth * config.vocab_size * FLOAT_BYTES
    return logits + 2 * rows * config.hidden_size * itemsize
