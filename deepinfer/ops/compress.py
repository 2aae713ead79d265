"""Two tokens into one compressed latent: a softmax over the pair, channel by channel."""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import working


def pool_pairs(values_E2K: Tensor, gates_E2K: Tensor) -> Tensor:
    """Σ softmax(gate) · value over each pair [E, K], first token first."""
    first_gate, second_gate = working(gates_E2K).unbind(1)
    first, second = working(values_E2K).unbind(1)
    peak = torch.maximum(first_gate, second_gate)
    first_weight, second_weight = torch.exp(first_gate - peak), torch.exp(second_gate - peak)
    pooled = (first_weight * first + second_weight * second) / (first_weight + second_weight)
    return pooled.to(values_E2K.dtype)
