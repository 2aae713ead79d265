"""The operations that a GPU has for any width, by name: plain Triton, static shapes, nothing waits for the device.

Importing this module needs triton.
"""

from collections.abc import Callable
from typing import Any

from deepinfer.kernels import (
    general_candidates,
    general_experts,
    general_hyper_border,
    general_index_scores,
    general_linear,
    general_markov_step,
    general_rotate_index_q,
    general_router,
    general_sparse_attention,
    triton_fp4_grouped_linear,
)


def general_ops() -> dict[str, Callable[..., Any]]:
    """What may stand in the place of a kernel that has fixed widths. The other kernels take any width themselves."""
    return {
        "prepare_fp8_weight": general_linear.prepare_fp8_weight,
        "fp8_linear": general_linear.fp8_linear,
        "fp8_grouped_linear": general_linear.fp8_grouped_linear,
        "bf16_linear": general_linear.bf16_linear,
        "sparse_attention": general_sparse_attention.sparse_attention,
        "rotate_quantise_index_q": general_rotate_index_q.rotate_quantise_index_q,
        "paged_index_scores": general_index_scores.paged_index_scores,
        "candidate_scores": general_index_scores.candidate_scores,
        "candidate_blocks": general_candidates.candidate_blocks,
        "top_entries": general_candidates.top_entries,
        "prepare_hyper_site": general_hyper_border.prepare_hyper_site,
        "hyper_border": general_hyper_border.hyper_border,
        "router": general_router.router,
        "prepare_experts_up": general_experts.prepare_experts,
        "prepare_experts": general_experts.prepare_experts,
        "fp4_experts_up": general_experts.fp4_experts_up,
        "fp4_grouped_linear": triton_fp4_grouped_linear.fp4_grouped_linear,
        "markov_work": general_markov_step.MarkovWork,
        "markov_step": general_markov_step.markov_step,
    }
