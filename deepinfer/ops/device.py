"""The typed list of fused operations that a model on an accelerator is built from, and their torch twins.

An accelerator wants fewer, larger operations than a CPU: packed weights instead of expanded ones, lists of row numbers
instead of gathered keys, outputs of fixed size. Every field has one twin in this package, made of the twins of `Ops`; two
implementations of a field take the same arguments and agree within the bound that the field's tests state. Integers that are
chosen (top-k, experts, tokens) agree exactly, given equal scores. Kernels that keep a workspace serve one launch at a time:
never two of parallel branches.

`prepare_*` re-lays weights once, at load; the twins keep them as the release stores them. `markov_work(device)` makes what
`markov_step` keeps between its blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from torch import Tensor

from deepinfer.ops.arguments import checked
from deepinfer.ops.decode_rows import DecodeNumbers
from deepinfer.ops.draft_rows import DraftRows
from deepinfer.ops.expert_permutation import Permutation
from deepinfer.ops.hyper_border import Border, SiteWeights
from deepinfer.ops.markov import MarkovStep
from deepinfer.ops.norm_quantise import Quantised
from deepinfer.ops.sampling_rows import SampledRows


@dataclass(frozen=True, kw_only=True)
class DeviceOps:
    """One implementation of everything. Shapes and meanings are in the docstrings of the twins (`twins()`)."""

    name: str
    # products
    prepare_fp8_weight: Callable[..., object]
    fp8_linear: Callable[..., Tensor]
    fp8_grouped_linear: Callable[..., Tensor]
    bf16_linear: Callable[..., Tensor]
    # norms, quantisers, cache rows
    norm_quantise: Callable[..., Quantised]
    quantise: Callable[..., Quantised]
    norm_rope_store_window: Callable[..., Tensor | None]
    compress_store: Callable[..., Tensor]
    index_store: Callable[..., None]
    expand_rows: Callable[..., Tensor]
    # rows of decode steps, and what they leave
    decode_rows: Callable[..., DecodeNumbers]
    append_tokens: Callable[..., None]
    keep_drafts: Callable[..., None]
    write_tails: Callable[[Tensor, Tensor, Tensor, Tensor], None]
    # attention and indexer
    sparse_attention: Callable[..., Tensor]
    rotate_quantise_index_q: Callable[..., Tensor]
    paged_index_scores: Callable[..., Tensor]
    candidate_scores: Callable[..., Tensor]
    candidate_blocks: Callable[..., Tensor]
    top_entries: Callable[..., Tensor]
    entry_rows: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    # residual streams
    prepare_hyper_site: Callable[[SiteWeights], object]
    hyper_border: Callable[..., Border]
    stream_mean: Callable[[Tensor, Tensor], Tensor]
    # experts
    router: Callable[[Tensor, Tensor, int, float], tuple[Tensor, Tensor]]
    expert_permutation: Callable[..., Permutation]
    prepare_experts_up: Callable[..., object]
    prepare_experts: Callable[..., object]
    fp4_experts_up: Callable[..., Tensor]
    fp4_grouped_linear: Callable[..., Tensor]
    swiglu_quantise: Callable[..., Tensor]
    combine: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    # n-gram memory
    ngram_rows: Callable[..., Tensor]
    engram_gather: Callable[[Tensor, Tensor, Tensor], Tensor]
    engram_add: Callable[..., Tensor]
    # sampling and drafts
    sample_rows: Callable[..., SampledRows]
    judge_drafts: Callable[..., None]
    accepted_lengths: Callable[..., Tensor]
    markov_work: Callable[..., object]
    markov_step: Callable[..., MarkovStep]
    draft_rows: Callable[..., DraftRows]
    weigh_drafts: Callable[..., Tensor]


Weight = TypeVar("Weight")
NAMES = tuple(field.name for field in fields(DeviceOps) if field.name != "name")


def twins() -> DeviceOps:
    """Every op as plain torch, on any device: the oracle of the kernels."""
    from deepinfer.ops import (
        bf16_linear,
        decode_rows,
        draft_judgement,
        draft_rows,
        engram,
        engram_gather,
        expert_permutation,
        fp4_experts,
        fp8_linear,
        hyper_border,
        indexer,
        markov,
        norm_quantise,
        numbered_rows,
        router,
        sampling_rows,
        sequence_tokens,
        sparse_attention,
        stored_keys,
        stored_places,
        stream_mean,
        swiglu_quantise,
    )

    ops = DeviceOps(
        name="twins",
        prepare_fp8_weight=_as_stored,
        fp8_linear=fp8_linear.fp8_linear,
        fp8_grouped_linear=fp8_linear.fp8_grouped_linear,
        bf16_linear=bf16_linear.bf16_linear,
        norm_quantise=norm_quantise.norm_quantise,
        quantise=norm_quantise.quantise,
        norm_rope_store_window=stored_keys.norm_rope_store_window,
        compress_store=stored_keys.compress_store,
        index_store=stored_keys.index_store,
        expand_rows=numbered_rows.expand_rows,
        decode_rows=decode_rows.decode_rows,
        append_tokens=sequence_tokens.append_tokens,
        keep_drafts=sequence_tokens.keep_drafts,
        write_tails=stored_places.write_tails,
        sparse_attention=sparse_attention.sparse_attention,
        rotate_quantise_index_q=indexer.rotate_quantise_index_q,
        paged_index_scores=indexer.paged_index_scores,
        candidate_scores=indexer.candidate_scores,
        candidate_blocks=indexer.candidate_blocks,
        top_entries=indexer.top_entries,
        entry_rows=stored_places.entry_rows,
        prepare_hyper_site=_as_stored,
        hyper_border=hyper_border.hyper_border,
        stream_mean=stream_mean.stream_mean,
        router=router.route,
        expert_permutation=expert_permutation.expert_permutation,
        prepare_experts_up=_as_stored,
        prepare_experts=_as_stored,
        fp4_experts_up=fp4_experts.fp4_experts_up,
        fp4_grouped_linear=fp4_experts.fp4_grouped_linear,
        swiglu_quantise=swiglu_quantise.swiglu_quantise,
        combine=expert_permutation.combine,
        ngram_rows=engram.ngram_rows,
        engram_gather=engram_gather.engram_gather,
        engram_add=engram.engram_add,
        sample_rows=sampling_rows.sample_rows,
        judge_drafts=draft_judgement.judge_drafts,
        accepted_lengths=sampling_rows.accepted_lengths,
        markov_work=_nothing,
        markov_step=markov.markov_step,
        draft_rows=draft_rows.draft_rows,
        weigh_drafts=draft_rows.weigh_drafts,
    )
    return looked_at(ops)


def looked_at(ops: DeviceOps) -> DeviceOps:
    """The same operations, each of which says what is wrong with its arguments before it computes anything."""
    asked: dict[str, Any] = {name: checked(name, getattr(ops, name)) for name in NAMES}
    return replace(ops, **asked)


def _as_stored(weight: Weight) -> Weight:
    return weight


def _nothing(device: object) -> None:
    """A twin keeps nothing."""
