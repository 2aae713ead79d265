"""Shifted hyper-connections: N residual streams, read by one set of weights, mixed and written by another.

Legend: T rows · N streams · D hidden · C = N · (2 + N) coefficients (read, write, mixing as [source, destination]).
"""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import reciprocal_rms, sigmoid, tree_sum, working


def hyper_coefficients(
    x_TND: Tensor, raw_TC: Tensor, base_C: Tensor, scale_3: Tensor, norm_eps: float, eps: float, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Read weights [T, N], mixing matrix [T, source, destination] and write weights [T, N] of one site.

    `raw_TC` is fn · flatten(x). The mixing matrix becomes doubly stochastic in `iterations` rounds, the last over columns.
    """
    streams = x_TND.shape[1]
    scaled_TC = raw_TC * reciprocal_rms(working(x_TND.flatten(1)), norm_eps)
    read, write, mixing = scaled_TC.split((streams, streams, streams * streams), dim=1)
    base_read, base_write, base_mixing = base_C.split((streams, streams, streams * streams))
    read_TN = sigmoid(read * scale_3[0] + base_read) + eps
    write_TN = 2 * sigmoid(write * scale_3[1] + base_write)
    logits_TMN = (mixing * scale_3[2] + base_mixing).unflatten(1, (streams, streams))
    return read_TN, sinkhorn(logits_TMN, eps, iterations), write_TN


def sinkhorn(logits_TMN: Tensor, eps: float, iterations: int) -> Tensor:
    """Softmax over destinations, then alternating column and row normalisation, ending on columns."""
    grown = torch.exp(logits_TMN - logits_TMN.amax(-1, keepdim=True))
    mixing = grown / tree_sum(grown).unsqueeze(-1) + eps
    mixing = mixing / (_column_sums(mixing) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (tree_sum(mixing).unsqueeze(-1) + eps)
        mixing = mixing / (_column_sums(mixing) + eps)
    return mixing


def hyper_collapse(x_TND: Tensor, mix_TN: Tensor) -> Tensor:
    """Σ_n mix_n · x_n [T, D], streams from first to last."""
    wide, mix = working(x_TND), mix_TN.unsqueeze(-1)
    total = wide[:, 0] * mix[:, 0]
    for n in range(1, x_TND.shape[1]):
        total = total + wide[:, n] * mix[:, n]
    return total.to(x_TND.dtype)


def hyper_mix(x_TND: Tensor, out_TD: Tensor, mixing_TMN: Tensor, write_TN: Tensor) -> Tensor:
    """x'_n = write_n · out + Σ_m mixing[m, n] · x_m [T, N, D], in that order."""
    wide = working(x_TND)
    total = write_TN.unsqueeze(-1) * working(out_TD).unsqueeze(1)
    for m in range(x_TND.shape[1]):
        total = total + mixing_TMN[:, m].unsqueeze(-1) * wide[:, m].unsqueeze(1)
    return total.to(x_TND.dtype)


def _column_sums(mixing_TMN: Tensor) -> Tensor:
    return tree_sum(mixing_TMN.transpose(1, 2)).unsqueeze(1)
