"""Products with bfloat16 weights: output head, router gate, compressor and indexer projections.

Legend: T rows · K inputs · N outputs.
"""

import torch
from torch import Tensor

from deepinfer.formats.scales import working_dtype
from deepinfer.ops.linear import linear


def bf16_linear(x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype) -> Tensor:
    """x · weightᵀ [T, N] as `dtype`, summed in float32 (float64 for float64 inputs)."""
    working = working_dtype(x_TK.dtype)
    return linear(x_TK.to(working), weight_NK.to(working)).to(dtype)
