"""The frozen target of drafter training: the shipped checkpoint's quantised trunk as training weights."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.arch.config import V41Config, parse_config
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.tokens import engram_classes
from deepinfer.model.checkpoint.weights import load_weights
from examples.tiny_model import regions
from examples.tiny_model.model import TrainingModel
from examples.tiny_model.released_names import DRAFT, training_tensors
from examples.tiny_model.train import HERE, TOKENIZER

CHECKPOINT = TOKENIZER.parent


class Target(NamedTuple):
    """Config, forward and weights (values as the release stores them; nothing is quantised again)."""

    config: V41Config
    model: TrainingModel
    weights: dict[str, Tensor]

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., V] of final hidden states [..., D], in float32 as the engine computes them."""
        normed = regions.rms_norm(hidden, self.weights["norm.weight"])
        return F.linear(normed, self.weights["head.weight"])


def load_target(checkpoint: Path, device: torch.device, dtype: torch.dtype) -> Target:
    """The trunk of `checkpoint`, computing in `dtype`."""
    config = parse_config(json.loads((HERE / "config.json").read_text()))
    released = load_weights(open_checkpoint(checkpoint), device=device)
    weights, bias_LE = training_tensors(released, config.num_hidden_layers, config.n_routed_experts)
    classes = torch.from_numpy(engram_classes(checkpoint / "tokenizer.json", config.vocab_size))
    model = TrainingModel(config, classes, device, compiled=False, dtype=dtype)
    model.bias_LE = bias_LE
    return Target(config, model, weights)


def shipped_draft_weights(
    checkpoint: Path, config: V41Config, device: torch.device
) -> tuple[dict[str, Tensor], Tensor]:
    """The drafter that lies in `checkpoint` under training names, and its router bias."""
    released = load_weights(open_checkpoint(checkpoint), device=device)
    draft = {name: tensor for name, tensor in released.items() if name.startswith(DRAFT)}
    return training_tensors(draft, config.num_nextn_predict_layers, config.dspark_n_routed_experts, DRAFT)
