"""From the stacked training tensors to the checkpoint's names."""

import torch
from torch import Tensor


def released_tensors(weights: dict[str, Tensor], bias_LE: Tensor) -> dict[str, Tensor]:
    """Trained tensors, detached, under the names of a released checkpoint; stacked experts are taken apart.

    `bias_LE` is the router bias; images use the same one, as there were none in training.
    """
    released: dict[str, Tensor] = {}
    for name, stacked in weights.items():
        weight = stacked.detach()
        if name.endswith("ffn.w13"):
            for expert, pair in zip(_expert_names(name, len(weight)), weight, strict=True):
                released[f"{expert}.w1.weight"], released[f"{expert}.w3.weight"] = pair[0], pair[1]
        elif name.endswith("ffn.w2"):
            for expert, matrix in zip(_expert_names(name, len(weight)), weight, strict=True):
                released[f"{expert}.w2.weight"] = matrix
        else:
            released[name] = weight
    for layer, bias in enumerate(bias_LE.detach().to(torch.float32)):
        for kind in ("bias", "bias_vl"):
            released[f"layers.{layer}.ffn.gate.{kind}"] = bias.clone()  # a file may not share memory between tensors
    return released


def _expert_names(name: str, count: int) -> list[str]:
    prefix = name[: name.rindex(".") + 1]
    return [f"{prefix}experts.{index}" for index in range(count - 1)] + [f"{prefix}shared_experts"]
