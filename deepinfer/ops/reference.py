"""The reference implementation: every op as its torch twin."""

import torch

from deepinfer import formats
from deepinfer.ops import attention, compress, engram, experts, hyper, index, linear, norm, rotate, router, rows
from deepinfer.ops.record import Ops


def reference() -> Ops:
    """Plain torch on a CPU: any dtype, nothing compiled."""
    return Ops(
        name="reference",
        dtypes=frozenset((torch.float32, torch.float64, torch.bfloat16)),
        linear=linear.linear,
        grouped_linear=linear.grouped_linear,
        rms_norm=norm.rms_norm,
        quantise_activation=norm.quantise_activation,
        quantise_index=formats.fake_index,
        rotate=rotate.rotate,
        hyper_coefficients=hyper.hyper_coefficients,
        hyper_collapse=hyper.hyper_collapse,
        hyper_mix=hyper.hyper_mix,
        write_rows=rows.write_rows,
        read_rows=rows.read_rows,
        attention=attention.attention,
        pool_pairs=compress.pool_pairs,
        index_scores=index.index_scores,
        best_entries=index.best_entries,
        candidate_blocks=index.candidate_blocks,
        keep_candidates=index.keep_candidates,
        router_scores=router.router_scores,
        choose_experts=router.choose_experts,
        swiglu=experts.swiglu,
        routed_experts=experts.routed_experts,
        engram_rows=engram.engram_rows,
        engram_add=engram.engram_add,
    )
