"""Random numbers by counter: the same seed, position and token always give the same noise, to the target and to the drafter."""

import torch
from torch import Tensor

# Odd 64-bit constants of the splitmix64 generator and its relatives, as signed numbers.
_SEED, _POSITION, _TOKEN = -7046029254386353131, -4658895280553007687, -7723592293110705685
_MIXES = ((30, -4658895280553007687), (27, -7723592293110705685))
_LAST_SHIFT = 31
ACCEPT_TOKEN = -1  # the coin of a position's acceptance is drawn as the noise of this "token"


def _mixed(x: Tensor) -> Tensor:
    """splitmix64's finaliser; int64 products wrap around, shifts are made logical."""
    for shift, factor in _MIXES:
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x ^ ((x >> _LAST_SHIFT) & ((1 << (64 - _LAST_SHIFT)) - 1))


def uniform(seeds_B: Tensor, positions: Tensor | int, tokens: Tensor) -> Tensor:
    """float32 in (0, 1), shape of seeds [B] (and positions [B]) broadcast with `tokens`."""
    place = positions * _POSITION
    if isinstance(place, int):  # Python's integers do not wrap around
        place = (place + 2**63) % 2**64 - 2**63
    state = _mixed(seeds_B * _SEED + place)
    bits = (
        _mixed(state.unsqueeze(1) + tokens * _TOKEN) >> 41 & 0x7FFFFF
    )  # 23 bits: their half-way points are exact in float32
    return (bits.float() + 0.5) * 2.0**-23


def gumbel(seeds_B: Tensor, positions: Tensor | int, vocab_size: int) -> Tensor:
    """Gumbel noise float32 [B, V]."""
    tokens = torch.arange(vocab_size, device=seeds_B.device)
    return -torch.log(-torch.log(uniform(seeds_B, positions, tokens)))


def accept_coin(seeds_B: Tensor, positions: Tensor) -> Tensor:
    """float32 [B] in (0, 1)."""
    return uniform(seeds_B, positions, torch.full((1,), ACCEPT_TOKEN, device=seeds_B.device)).squeeze(1)
