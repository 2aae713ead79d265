"""The fused operations as kernels for Hopper: Triton where it suffices, CUDA C++ where it falls short.

Importing this module needs triton; the CUDA C++ kernels are compiled for the device when first used.
"""

from functools import partial

from deepinfer.kernels import (
    cuda_candidate_blocks,
    cuda_candidate_scores,
    cuda_expert_permutation,
    cuda_fp4_experts_up,
    cuda_fp4_grouped_linear,
    cuda_fp8_linear,
    cuda_hyper_border,
    cuda_index_scores,
    cuda_markov_step,
    cuda_router,
    cuda_sample_rows,
    cuda_sparse_attention,
    cuda_top_entries,
    fp4_expert_tiles,
    triton_accepted_lengths,
    triton_bf16_linear,
    triton_combine,
    triton_compress_store,
    triton_engram_add,
    triton_engram_gather,
    triton_expand_rows,
    triton_index_store,
    triton_norm_quantise,
    triton_quantise,
    triton_rotate_index_q,
    triton_store_window,
    triton_swiglu_quantise,
)
from deepinfer.ops.device import DeviceOps, looked_at


def hopper() -> DeviceOps:
    """For a GPU of compute capability 9.0."""
    ops = DeviceOps(
        name="hopper",
        prepare_fp8_weight=cuda_fp8_linear.prepare_fp8_weight,
        fp8_linear=cuda_fp8_linear.fp8_linear,
        fp8_grouped_linear=cuda_fp8_linear.fp8_grouped_linear,
        bf16_linear=triton_bf16_linear.bf16_linear,
        norm_quantise=triton_norm_quantise.norm_quantise,
        quantise=triton_quantise.quantise,
        norm_rope_store_window=triton_store_window.norm_rope_store_window,
        compress_store=triton_compress_store.compress_store,
        index_store=triton_index_store.index_store,
        expand_rows=triton_expand_rows.expand_rows,
        sparse_attention=cuda_sparse_attention.sparse_attention,
        rotate_quantise_index_q=triton_rotate_index_q.rotate_quantise_index_q,
        paged_index_scores=cuda_index_scores.paged_index_scores,
        candidate_scores=cuda_candidate_scores.candidate_scores,
        candidate_blocks=cuda_candidate_blocks.candidate_blocks,
        top_entries=cuda_top_entries.top_entries,
        prepare_hyper_site=cuda_hyper_border.prepare_hyper_site,
        hyper_border=cuda_hyper_border.hyper_border,
        router=cuda_router.router,
        expert_permutation=cuda_expert_permutation.expert_permutation,
        prepare_experts_up=partial(fp4_expert_tiles.tile_experts, paired=True),
        prepare_experts=fp4_expert_tiles.tile_experts,
        fp4_experts_up=cuda_fp4_experts_up.fp4_experts_up,
        fp4_grouped_linear=cuda_fp4_grouped_linear.fp4_grouped_linear,
        swiglu_quantise=triton_swiglu_quantise.swiglu_quantise,
        combine=triton_combine.combine,
        engram_gather=triton_engram_gather.engram_gather,
        engram_add=triton_engram_add.engram_add,
        sample_rows=cuda_sample_rows.sample_rows,
        accepted_lengths=triton_accepted_lengths.accepted_lengths,
        markov_work=cuda_markov_step.MarkovWork,
        markov_step=cuda_markov_step.markov_step,
    )
    return looked_at(ops)
