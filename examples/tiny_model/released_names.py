"""From the stacked training tensors to the checkpoint's names, and back."""

import torch
from torch import Tensor

TRUNK, DRAFT = "layers.", "mtp."  # what the names of a layer begin with


def released_tensors(weights: dict[str, Tensor], bias_LE: Tensor, prefix: str = TRUNK) -> dict[str, Tensor]:
    """Trained tensors, detached, under the names of a released checkpoint; stacked experts are taken apart.

    `bias_LE` is the router bias of the layers under `prefix`; images use the same one, as there were none in training.
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
            released[f"{prefix}{layer}.ffn.gate.{kind}"] = bias.clone()  # a file may not share memory between tensors
    return released


def training_tensors(
    released: dict[str, Tensor], num_layers: int, num_experts: int, prefix: str = TRUNK
) -> tuple[dict[str, Tensor], Tensor]:
    """The inverse of `released_tensors` for the layers under `prefix` and everything outside layers: weights, bias_LE."""
    weights, biases = {}, []
    other = DRAFT if prefix == TRUNK else TRUNK
    for name, tensor in released.items():
        if not name.startswith(other) and "experts." not in name and not name.endswith((".bias", ".bias_vl")):
            weights[name] = tensor
    for layer in range(num_layers):
        ffn = f"{prefix}{layer}.ffn."
        names = _expert_names(ffn, num_experts + 1)
        pairs = [torch.stack([released[f"{name}.w{part}.weight"] for part in (1, 3)]) for name in names]
        weights[ffn + "w13"] = torch.stack(pairs)
        weights[ffn + "w2"] = torch.stack([released[f"{name}.w2.weight"] for name in names])
        biases.append(released[ffn + "gate.bias"])
    return weights, torch.stack(biases)


def _expert_names(name: str, count: int) -> list[str]:
    prefix = name[: name.rindex(".") + 1]
    return [f"{prefix}experts.{index}" for index in range(count - 1)] + [f"{prefix}shared_experts"]
