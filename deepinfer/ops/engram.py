"""N-gram memory: hashing token classes to table rows, and the gate that lets a row into each stream.

Legend: T rows · G n-gram slots (own token first) · R table rows of a token · V vocabulary · N streams · D hidden.
"""

import torch
from torch import Tensor

from deepinfer.ops.arithmetic import reciprocal_rms, sigmoid, tree_sum, working


def engram_rows(classes_TG: Tensor, multipliers_G: Tensor, primes_OH: Tensor, offsets_OH: Tensor) -> Tensor:
    """Row ids int64 [T, R], n-gram order (2, 3, …) major and head minor. Products wrap around in 64 bits, as published."""
    scrambled_TG = classes_TG * multipliers_G
    mixed, columns = scrambled_TG[:, 0], []
    for order, (primes_H, offsets_H) in enumerate(zip(primes_OH, offsets_OH), start=1):
        mixed = mixed ^ scrambled_TG[:, order]
        columns.append(mixed.unsqueeze(1) % primes_H + offsets_H)
    return torch.cat(columns, dim=1)


def ngram_rows(
    ngram_ids_TG: Tensor,
    classes_V: Tensor,
    pad_class: int,
    multipliers_G: Tensor,
    primes_OH: Tensor,
    offsets_OH: Tensor,
) -> Tensor:
    """`engram_rows` of token ids, own token first; -1 stands before the sequence, where the pad token's class is."""
    classes_TG = torch.where(ngram_ids_TG >= 0, classes_V[ngram_ids_TG.clamp(min=0)], pad_class)
    return engram_rows(classes_TG, multipliers_G, primes_OH, offsets_OH)


def engram_add(x_TND: Tensor, key_TND: Tensor, value_TD: Tensor, q_ND: Tensor, k_ND: Tensor, eps: float) -> Tensor:
    """x + gate · value [T, N, D]; the gate of a stream compares it with the memory's key."""
    x, key = working(x_TND), working(key_TND)
    dot_TN = tree_sum(x * working(q_ND) * key * working(k_ND))
    dot_TN = dot_TN * reciprocal_rms(x, eps).squeeze(-1) * reciprocal_rms(key, eps).squeeze(-1) * x.shape[-1] ** -0.5
    gate_TN = sigmoid(dot_TN.sign() * torch.sqrt(dot_TN.abs().clamp(min=1e-6)))
    return (x + gate_TN.unsqueeze(-1) * working(value_TD).unsqueeze(1)).to(x_TND.dtype)
