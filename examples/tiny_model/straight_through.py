"""Fake quantisation with the engine's own quantisers; gradients pass straight through."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.formats import fake_fp4_experts, fake_fp8_blocks, fake_fp8_rows, fake_index, fake_main, fake_window

BLOCK = 32
# Suffixes of the trained tensors that the release stores as FP8 in 32 × 32 blocks.
FP8_SUFFIXES = ("attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.wo_a.weight", "attn.wo_b.weight",
                "indexer.wq_b.weight", "engram.wkv.weight", "main_proj.weight")  # fmt: skip
EXPERT_SUFFIXES = ("ffn.w13", "ffn.w2")  # routed experts and, last, the shared one
TABLE_SUFFIX = "engram.embed.weight"


def passing(x: Tensor, quantiser: Callable[[Tensor], Tensor]) -> Tensor:
    """quantiser(x), bit for bit, with the gradient of x."""
    return quantiser(x.detach()) + (x - x.detach())


def activation(x: Tensor) -> Tensor:
    """FP8 per 32 columns: what enters an FP8 or FP4 linear."""
    return passing(x, fake_fp8_rows)


def window_key(x: Tensor) -> Tensor:
    return passing(x, fake_window)


def main_key(x: Tensor) -> Tensor:
    return passing(x, fake_main)


def index_vector(x: Tensor) -> Tensor:
    return passing(x, fake_index)


def is_float32(name: str) -> bool:
    """Whether the release keeps this tensor in F32."""
    return "hc_attn_" in name or "hc_ffn_" in name or name.endswith("attn_sink")


def quantised_weight(name: str, weight: Tensor) -> Tensor:
    """The value that the released format would hold for a trained tensor, in float32."""
    if name.endswith(FP8_SUFFIXES):
        return fake_fp8_blocks(weight)
    if name.endswith(EXPERT_SUFFIXES):
        return torch.cat((fake_fp4_experts(weight[:-1]), fake_fp8_blocks(weight[-1:])))
    if name.endswith(TABLE_SUFFIX):
        return fake_fp8_rows(weight)
    return weight.detach().clone() if is_float32(name) else weight.detach().to(torch.bfloat16).float()


def _as_blocks(weight: Tensor) -> Tensor:
    """[..., out, in] → [blocks, 32, 32], so that all matrices are quantised in one call."""
    matrices = weight.reshape(-1, *weight.shape[-2:])
    blocks = matrices.unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
    return blocks.transpose(2, 3).reshape(-1, BLOCK, BLOCK)


def _from_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    out_dim, in_dim = like.shape[-2:]
    tiles = blocks.reshape(-1, out_dim // BLOCK, in_dim // BLOCK, BLOCK, BLOCK)
    return tiles.transpose(2, 3).reshape(like.shape)


class QuantisedWeights:
    """Leaf copies of the trained tensors that hold what the release would hold.

    The forward pass runs on `leaves`; their gradients are handed to the trained tensors. Grouping the tensors by format
    makes a refresh a few dozen kernels instead of thousands; a test demands equality with `quantised_weight`.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.leaves = {name: weight.detach().clone().requires_grad_(True) for name, weight in weights.items()}

    @torch.no_grad()
    def refresh(self, quantise: bool) -> None:
        """Copy the trained values into the leaves, quantised or as they are."""
        names = list(self.weights)
        if quantise:
            self._copy_group([n for n in names if n.endswith(FP8_SUFFIXES)], slice(None), fake_fp8_blocks)
            experts = [n for n in names if n.endswith(EXPERT_SUFFIXES)]
            self._copy_group(experts, slice(-1, None), fake_fp8_blocks)
            for name in experts:
                self.leaves[name][:-1].copy_(fake_fp4_experts(self.weights[name][:-1]))
            for name in names:
                if name.endswith(TABLE_SUFFIX):
                    self.leaves[name].copy_(fake_fp8_rows(self.weights[name]))
            done = (*FP8_SUFFIXES, *EXPERT_SUFFIXES, TABLE_SUFFIX)
            names = [n for n in names if not n.endswith(done)]
            rounded = [n for n in names if not is_float32(n)]
            halves = [self.weights[n].to(torch.bfloat16) for n in rounded]
            torch._foreach_copy_([self.leaves[n] for n in rounded], halves)
            names = [n for n in names if is_float32(n)]
        torch._foreach_copy_([self.leaves[n] for n in names], [self.weights[n] for n in names])

    def _copy_group(self, names: list[str], part: slice, quantiser: Callable[[Tensor], Tensor]) -> None:
        sources = [self.weights[n] if part == slice(None) else self.weights[n][part] for n in names]
        blocks = [_as_blocks(source) for source in sources]
        quantised = quantiser(torch.cat(blocks)).split([len(b) for b in blocks])
        for name, source, piece in zip(names, sources, quantised, strict=True):
            target = self.leaves[name] if part == slice(None) else self.leaves[name][part]
            target.copy_(_from_blocks(piece, source))

    def hand_over_gradients(self) -> None:
        """Move the leaves' gradients to the trained tensors."""
        for name, leaf in self.leaves.items():
            self.weights[name].grad, leaf.grad = leaf.grad, None
