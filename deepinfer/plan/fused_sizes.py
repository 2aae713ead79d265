"""Bytes on a GPU whose model is made of fused operations: weights in their kernels' order, and what a run keeps beside caches.

Experts and n-gram tables keep their size. A dense FP8 weight is tiled with its scales widened, or, where its widths are no
multiples of a tile, expanded to bfloat16; the products of the residual streams are split into three bfloat16 parts. Which of
them is decided by the widths alone, as in deepinfer/ops/device_choice.py.
"""

import math
from functools import lru_cache

import msgspec

from deepinfer.arch.cache import DTYPE_ITEMSIZE, CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import DTYPE_BYTES, TensorSpec, tensor_table
from deepinfer.plan.types import Drafting

TILE = 128  # outputs and inputs of a dense FP8 weight come by so many
TILED_BYTES = 1 + 16 / 4096  # of a weight: its code, and its part of the widened scales of a tile
SPLIT_BYTES = 3 * 2  # three bfloat16 parts of one float32 number
BORDER_COLUMNS, BORDER_MOST, STREAMS = 1024, 5120, 4  # widths of the fused residual streams
WIDE_BYTES = 4
INT32 = 4
MOST_EDITS, MOST_MASKS = 1 << 20, 1 << 11  # of a step, for which there is room, see deepinfer/sampling/device_room.py
EDIT_BYTES = 16  # id, bias, count
UNREAD = ("gate.bias_vl",)  # a bias for images


def shared_bytes(config: V41Config, group: str, dtype: str, *, kernels: bool) -> int:
    """Of what every rank holds of a class: "embed", "head", "dense" or "draft", routed experts and n-gram tables apart.

    `kernels`: in the order of our kernels; else as stored, as torch's twins of them take weights.
    """
    form = _Form(
        DTYPE_ITEMSIZE[dtype], kernels and dense_is_tiled(config), kernels and streams_are_split(config), kernels
    )
    total = sum(form.num_bytes(tensor) for tensor in _shared(config) if tensor.group == group)
    return total + (_shared_keys(config, form) if group == "draft" else 0)


def run_bytes(
    config: V41Config, cache: CacheLayout, drafting: Drafting, verify: str, *, slots: int, max_model_len: int
) -> dict[str, int]:
    """What stands on the device for a whole run: tables of cosines, what is known of its sequences, room for a step's masks
    and edits of logits, and what the draft module's drafts were drawn from where rejection sampling asks for it.
    """
    tables = 2 + bool(drafting.num_draft_layers)  # with the long and the short base; the drafter's reaches further
    positions = max_model_len * config.qk_rope_head_dim * WIDE_BYTES * tables
    columns = config.engram_max_ngram_size - 1 + max_model_len + drafting.depth + 1
    blocks = -(-max_model_len // cache.block_tokens)
    sequences = (slots + 1) * (columns + 2 * drafting.depth + 2) * INT32
    sent = (slots * blocks + 4 * (slots + 1)) * INT32
    rows = slots * (1 + drafting.depth)
    masks = min(1 + rows, MOST_MASKS) * -(-config.vocab_size // 32) * INT32
    proposals = (slots + 1) * drafting.depth * config.vocab_size * WIDE_BYTES
    judged = verify == "rejection" and drafting.num_draft_layers
    return {
        "positions": positions,
        "sequences": sequences + sent + config.vocab_size * 8,
        "sampling": masks + MOST_EDITS * EDIT_BYTES + (proposals if judged else 0),
    }


def dense_is_tiled(config: V41Config) -> bool:
    """Whether every dense FP8 weight has whole tiles as the model multiplies by it."""
    c = config
    grouped, heads = c.o_groups * c.o_lora_rank, c.num_attention_heads * c.head_dim
    widths = [
        *(c.q_lora_rank + c.head_dim, c.hidden_size, heads, c.q_lora_rank, c.index_n_heads * c.index_head_dim),
        *(grouped, heads // c.o_groups, c.o_lora_rank, c.moe_intermediate_size, 2 * c.moe_intermediate_size),
    ]
    if c.engram_layer_ids:
        widths += [
            (c.hc_mult + 1) * c.hidden_size,
            (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim,
        ]
    return not any(width % TILE for width in widths)


def streams_are_split(config: V41Config) -> bool:
    """Whether the fused kernel takes the residual streams."""
    hidden = config.hidden_size
    return config.hc_mult == STREAMS and hidden % BORDER_COLUMNS == 0 and hidden <= BORDER_MOST


class _Form(msgspec.Struct, frozen=True):
    """How weights lie: bytes of a plain number, FP8 tiled (or expanded, with `kernels`), streams split."""

    itemsize: int
    tiled: bool
    split: bool
    kernels: bool

    def num_bytes(self, tensor: TensorSpec) -> int:
        stored, name = math.prod(tensor.shape), tensor.name
        if name.endswith(UNREAD):
            return 0
        if tensor.dtype == "F32":
            parts = self.split and name.endswith(("hc_attn_fn", "hc_ffn_fn"))
            return stored * (SPLIT_BYTES if parts else max(WIDE_BYTES, self.itemsize))
        if tensor.dtype == "BF16":
            return stored * self.itemsize
        if not self.kernels:
            return stored * DTYPE_BYTES[tensor.dtype]
        if name.endswith(".scale"):
            return 0
        return int(stored * (TILED_BYTES if self.tiled else 2))


def _shared_keys(config: V41Config, form: _Form) -> int:
    """The drafter's key weights of all layers together, which its layers hold besides."""
    return sum(
        form.num_bytes(tensor)
        for tensor in _shared(config)
        if tensor.group == "draft" and tensor.name.rpartition(".")[0].endswith("attn.wkv")
    )


@lru_cache(maxsize=16)
def _shared(config: V41Config) -> tuple[TensorSpec, ...]:
    one = msgspec.structs.replace(config, n_routed_experts=1, dspark_n_routed_experts=1)
    gates = {"n_routed_experts": config.n_routed_experts, "dspark_n_routed_experts": config.dspark_n_routed_experts}
    found = []
    for tensor in tensor_table(one):
        if tensor.group in ("experts", "engram", "vision") or ".ffn.experts." in tensor.name:
            continue
        if ".ffn.gate." in tensor.name:  # one row for each expert
            rows = gates["dspark_n_routed_experts" if tensor.group == "draft" else "n_routed_experts"]
            tensor = msgspec.structs.replace(tensor, shape=(rows, *tensor.shape[1:]))
        found.append(tensor)
    return tuple(found)
