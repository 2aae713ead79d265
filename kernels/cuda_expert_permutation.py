"""Pairs (row, slot) sorted by expert on Hopper (CUDA C++, GPU only): one launch, no host, whatever order blocks run in.

Legend: T rows · X chosen experts of a row · P = T · X pairs · E local experts.
"""

from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of
from torch import Tensor

from deepinfer.ops.expert_permutation import Permutation

BLOCKS, WARPS, EXPERTS = 8, 32, 24  # of a cluster, of a block; experts that a cluster serves; measured on an H200
FEW_PAIRS = 1280  # most for which one block does what a cluster does for more


def expert_permutation(
    picks_TX: Tensor, num_experts: int, first: int = 0, weights_TX: Tensor | None = None
) -> Permutation:
    """Pairs of the `num_experts` experts from `first` on in the order (expert, row, slot); ids int32, weights float32."""
    assert picks_TX.dtype == torch.int32 and picks_TX.is_contiguous(), "ids are contiguous int32"
    plain = weights_TX is None or (weights_TX.dtype == torch.float32 and weights_TX.is_contiguous())
    assert plain and (weights_TX is None or weights_TX.shape == picks_TX.shape), "weights are contiguous float32"
    assert picks_TX.numel() < 2**31 and num_experts > 0, "there are fewer than 2^31 pairs, and some experts"
    out = Permutation(
        starts_E1=picks_TX.new_empty(num_experts + 1),
        rows_P=picks_TX.new_empty(picks_TX.numel()),
        places_TX=torch.empty_like(picks_TX),
        weights_P=None if weights_TX is None else weights_TX.new_empty(picks_TX.numel()),
    )
    clusters, blocks = -(-num_experts // EXPERTS), 1 if picks_TX.numel() <= FEW_PAIRS else BLOCKS
    _kernel(device_of(picks_TX), picks_TX.shape[1], blocks)(
        (clusters * blocks,), picks_TX, weights_TX, out.starts_E1, out.rows_P, out.places_TX, out.weights_P,
        picks_TX.numel(), first, num_experts,
    )  # fmt: skip
    return out


@cache
def _kernel(device: int, chosen: int, blocks: int) -> Launch:
    macros = {"CHOSEN": chosen, "OWN": EXPERTS, "BLOCKS": blocks, "WARPS": WARPS}
    program = CudaProgram("cuda_expert_permutation.cu", macros)
    return program.kernel("expert_permutation", threads=WARPS * 32, cluster=(blocks, 1, 1), overlap=True)
