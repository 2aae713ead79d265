"""Formulas of the one-shot forward that need no state: coefficients, n-gram rows, stable choice, rotation.

Legend: T tokens · N streams · J entries · B blocks · K head dim · R table rows of a token.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import EngramTable
from deepinfer.model.rope import inverse_frequencies


def hyper_coefficients(
    config: V41Config, flat_TX: Tensor, fn: Tensor, base: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and C of a site: read weights, doubly stochastic mixing (source, destination), write weights."""
    c, n = config, config.hc_mult
    y = F.linear(flat_TX, fn) * (flat_TX.square().mean(-1, keepdim=True) + c.rms_norm_eps).rsqrt()
    read = (y[:, :n] * scale[0] + base[:n]).sigmoid() + c.hc_eps
    write = 2 * (y[:, n : 2 * n] * scale[1] + base[n : 2 * n]).sigmoid()
    comb = (y[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(1, (n, n)).softmax(-1) + c.hc_eps
    comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
    for _ in range(c.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(2, keepdim=True) + c.hc_eps)
        comb = comb / (comb.sum(1, keepdim=True) + c.hc_eps)
    return read, comb, write


def engram_rows(config: V41Config, table: EngramTable, classes_T: Tensor, pad: int) -> Tensor:
    """Table rows int64 [T, R]; slots before the sequence hold the pad token's class."""
    mixed, columns = classes_T * table.multipliers[0], []
    for back in range(1, config.engram_max_ngram_size):
        slot_T = F.pad(classes_T, (back, 0), value=pad)[: len(classes_T)]
        mixed = mixed ^ (slot_T * table.multipliers[back])
        first = (back - 1) * config.engram_n_heads
        primes = torch.tensor(table.primes[first : first + config.engram_n_heads])
        offsets = torch.tensor(table.offsets[first : first + config.engram_n_heads])
        columns.append(mixed.unsqueeze(1) % primes + offsets)
    return torch.cat(columns, 1)


def best_of(scores_TJ: Tensor, count: int) -> Tensor:
    """bool mask of the `count` largest scores of each row, lowest index first among equals; -inf is never chosen."""
    order = scores_TJ.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(scores_TJ, dtype=torch.bool).scatter_(1, order, True) & (scores_TJ > -math.inf)


def candidate_mask(config: V41Config, scores_TJ: Tensor, visible_T: Tensor) -> Tensor:
    """Entries of the best blocks, the newest visible entry's block always among them: bool [T, J]."""
    c = config
    size, count = c.candidate_block_size, scores_TJ.shape[1]
    blocks_TB = F.pad(scores_TJ, (0, -count % size), value=-torch.inf).unflatten(1, (-1, size)).amax(-1)
    newest_TB = torch.arange(blocks_TB.shape[1]) == ((visible_T - 1) // size).unsqueeze(1)
    best_TB = best_of(blocks_TB.masked_fill(newest_TB, torch.inf), c.candidate_topk_blocks)
    return best_TB.repeat_interleave(size, 1)[:, :count]


def rotated(config: V41Config, x: Tensor, positions: Tensor, *, compressed: bool, inverse: bool = False) -> Tensor:
    """Rotary embedding of the last rope dims of x [T, K] or [T, H, K]."""
    angles = positions.double().unsqueeze(1) * torch.from_numpy(inverse_frequencies(config, compressed=compressed))
    angles = angles if x.ndim == 2 else angles.unsqueeze(1)
    cos, sin = angles.cos().to(x.dtype), (-angles if inverse else angles).sin().to(x.dtype)
    dims = config.qk_rope_head_dim
    even, odd = x[..., -dims::2], x[..., x.shape[-1] - dims + 1 :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((x[..., :-dims], turned), -1)
