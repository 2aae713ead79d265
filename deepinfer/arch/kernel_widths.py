"""Which widths of a model the fast kernels for Hopper take, operation by operation, and what no kernel takes.

Decided by the model's config and the size of cache blocks, never by a step: a model has the same operations for every batch.
Where a fast kernel takes another width, a general one computes, which is slower.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from deepinfer.arch.config import V41Config

Found = Iterator[str]  # one "width=256: what the kernel takes" for each width that the fast kernel refuses
BLOCK_TOKENS = 128  # of a cache block, as configured by default


class Choice(NamedTuple):
    """Operations that are chosen together, and why the fast ones are not: an empty list where they are."""

    operations: tuple[str, ...]
    found: Callable[[V41Config], Found]


def reasons(config: V41Config, *, block_tokens: int = BLOCK_TOKENS) -> tuple[str, ...]:
    """One sentence for each group of operations whose fast kernels do not take the model's widths."""
    return tuple(
        f"{', '.join(found)}; a general kernel computes {' and '.join(_spoken(choice.operations))}"
        for choice in CHOICES
        if (found := lacks(choice, config, block_tokens))
    )


def lacks(choice: Choice, config: V41Config, block_tokens: int) -> list[str]:
    """Why the fast kernels of a group do not take the model; nothing where they do."""
    found = list(choice.found(config))
    entries = _block_entries(config, block_tokens)
    if "paged_index_scores" in choice.operations and entries - {64, 128}:
        sizes = " and ".join(map(str, sorted(entries)))
        found.append(
            f"cache.block_tokens={block_tokens}: the index kernel takes blocks of 64 or 128 entries, not {sizes}"
        )
    return found


def _block_entries(config: V41Config, block_tokens: int) -> set[int]:
    return {block_tokens // config.ratio(layer) for layer in config.kv_source_layer_ids}


def refusals(config: V41Config, *, block_tokens: int = BLOCK_TOKENS) -> list[str]:
    """What neither a fast nor a general kernel takes, one sentence each."""
    problems = []
    for name, least in (("head_dim", 64), ("index_head_dim", 32), ("engram_head_dim", 32)):
        width = getattr(config, name)
        if (name != "engram_head_dim" or config.engram_layer_ids) and (width < least or width & (width - 1)):
            problems.append(f"{name}={width}: kernels take powers of two from {least} on")
    grouped = {"o_groups · o_lora_rank": config.o_groups * config.o_lora_rank}
    grouped |= {name: getattr(config, name) for name in ("hidden_size", "q_lora_rank", "moe_intermediate_size")}
    problems += [f"{name}={width}: kernels quantise groups of 32" for name, width in grouped.items() if width % 32]
    for name in ("index_topk", "candidate_topk_blocks"):
        if getattr(config, name) > 4095:
            problems.append(f"{name}={getattr(config, name)}: the kernel that chooses entries takes up to 4,095")
    if config.index_n_heads % 4:
        problems.append(
            f"index_n_heads={config.index_n_heads}: rows of keys and index weights begin at 16 bytes: multiples of 4"
        )
    if config.vocab_size % 32 or not 2048 <= config.vocab_size <= 1 << 17:
        problems.append(
            f"vocab_size={config.vocab_size}: the sampler's kernel takes multiples of 32 from 2,048 to 131,072"
        )
    if any(entries % 8 for entries in _block_entries(config, block_tokens)):
        problems.append(
            f"cache.block_tokens={block_tokens}: kernels choose among entries by eights, type a multiple of 16"
        )
    return problems


def _spoken(operations: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in operations if not name.startswith(("prepare_", "markov_work")))


def _dense(c: V41Config) -> Found:
    for (outputs, inputs), what in fp8_weights(c):
        if outputs % 128 or inputs % 128:
            yield f"{what} is {outputs} × {inputs}: the FP8 kernel takes multiples of 128"
            return
    if c.o_lora_rank % 128:
        yield f"o_lora_rank={c.o_lora_rank}: the grouped FP8 kernel takes multiples of 128"


def fp8_weights(c: V41Config) -> list[tuple[tuple[int, int], str]]:
    """Outputs and inputs of every dense FP8 weight as the model multiplies by it, and what it is called."""
    heads, grouped = c.num_attention_heads * c.head_dim, c.o_groups * c.o_lora_rank
    weights = [
        ((c.q_lora_rank + c.head_dim, c.hidden_size), "wq_a and wkv together"),
        ((heads, c.q_lora_rank), "wq_b"),
        ((c.index_n_heads * c.index_head_dim, c.q_lora_rank), "the indexer's wq_b"),
        ((grouped, heads // c.o_groups), "wo_a"),
        ((c.hidden_size, grouped), "wo_b"),
        ((2 * c.moe_intermediate_size, c.hidden_size), "the shared expert's w1 and w3 together"),
        ((c.hidden_size, c.moe_intermediate_size), "the shared expert's w2"),
    ]
    if c.engram_layer_ids:
        memory = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        weights.append((((c.hc_mult + 1) * c.hidden_size, memory), "the n-gram memory's wkv"))
    if c.num_nextn_predict_layers:
        features = len(c.dspark_target_layer_ids) * c.hidden_size
        weights.append(((c.hidden_size, features), "the draft module's main_proj"))
        keys = c.num_nextn_predict_layers * c.head_dim
        weights.append(((keys, c.hidden_size), "the draft layers' wkv together"))
    return weights


def _plain(c: V41Config) -> Found:
    if c.hidden_size % 64:
        yield f"hidden_size={c.hidden_size}: the bfloat16 kernel takes multiples of 64"
    if c.head_dim % 64:
        yield f"head_dim={c.head_dim}: the bfloat16 kernel takes multiples of 64"
    if c.num_nextn_predict_layers and c.dspark_markov_rank % 64:
        yield f"dspark_markov_rank={c.dspark_markov_rank}: the bfloat16 kernel takes multiples of 64"


def _attention(c: V41Config) -> Found:
    if (c.num_attention_heads, c.head_dim, c.qk_rope_head_dim) != (64, 512, 64):
        yield (
            f"num_attention_heads={c.num_attention_heads}, head_dim={c.head_dim} and qk_rope_head_dim={c.qk_rope_head_dim}: "
            "the attention kernel has 64 heads of 512 dims, 64 of them turned"
        )
    for name in ("sliding_window", "index_topk"):
        if getattr(c, name) % 64 or getattr(c, name) > 2048:
            yield f"{name}={getattr(c, name)}: the attention kernel takes lists of whole blocks of 64, to 2,048"


def _index_queries(c: V41Config) -> Found:
    if (c.index_head_dim, c.qk_rope_head_dim) != (128, 64):
        yield (
            f"index_head_dim={c.index_head_dim} and qk_rope_head_dim={c.qk_rope_head_dim}: the kernel turns 64 of 128 dims"
        )


def _index_scores(c: V41Config) -> Found:
    if (c.index_n_heads, c.index_head_dim) != (32, 128):
        yield (
            f"index_n_heads={c.index_n_heads} and index_head_dim={c.index_head_dim}: the index kernel has 32 heads of 128 dims"
        )
    yield from _candidates(c)


def _candidates(c: V41Config) -> Found:
    if c.candidate_block_size != 8:
        yield f"candidate_block_size={c.candidate_block_size}: the kernels of candidates have blocks of 8"


def _border(c: V41Config) -> Found:
    if c.hidden_size % 1024 or c.hidden_size > 5120:
        yield f"hidden_size={c.hidden_size}: the kernel of hyper_border takes multiples of 1,024 to 5,120"
    if c.hc_mult != 4:
        yield f"hc_mult={c.hc_mult}: the kernel of hyper_border has four streams"


def _router(c: V41Config) -> Found:
    for name, chosen in (
        ("n_routed_experts", c.num_experts_per_tok),
        ("dspark_n_routed_experts", c.dspark_num_experts_per_tok),
    ):
        experts = getattr(c, name)
        if name.startswith("dspark") and not c.num_nextn_predict_layers:
            continue
        if experts % 128 or experts > 512 or chosen > 8:
            yield f"{name}={experts}, {chosen} chosen: the router's kernel takes multiples of 128 to 512, and chooses up to 8"


def _experts(c: V41Config) -> Found:
    if c.moe_intermediate_size % 128 or c.hidden_size % 256:
        yield (
            f"moe_intermediate_size={c.moe_intermediate_size} and hidden_size={c.hidden_size}: the kernel of experts takes "
            "multiples of 128 and of 256"
        )
    if c.n_routed_experts > 384:
        yield f"n_routed_experts={c.n_routed_experts}: the kernel of experts lists 384"


def _markov(c: V41Config) -> Found:
    if c.num_nextn_predict_layers and c.dspark_markov_rank != 256:
        yield f"dspark_markov_rank={c.dspark_markov_rank}: the kernel of markov_step has rank 256"


CHOICES = (
    Choice(("prepare_fp8_weight", "fp8_linear", "fp8_grouped_linear"), _dense),
    Choice(("bf16_linear",), _plain),
    Choice(("sparse_attention",), _attention),
    Choice(("rotate_quantise_index_q",), _index_queries),
    Choice(("paged_index_scores", "candidate_scores"), _index_scores),
    Choice(("candidate_blocks", "top_entries"), _candidates),
    Choice(("prepare_hyper_site", "hyper_border"), _border),
    Choice(("router",), _router),
    Choice(("prepare_experts_up", "prepare_experts", "fp4_experts_up", "fp4_grouped_linear"), _experts),
    Choice(("markov_work", "markov_step"), _markov),
)


def is_fast(operation: str, config: V41Config) -> bool:
    """Whether the fast kernel of an operation takes the model's widths, whatever the size of cache blocks."""
    return not any(any(choice.found(config)) for choice in CHOICES if operation in choice.operations)
