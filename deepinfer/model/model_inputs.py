"""What every model is given besides weights, checked once: classes of tokens, and whether rows may be dropped."""

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config


def class_table(config: V41Config, token_classes: np.ndarray | None) -> tuple[Tensor | None, int]:
    """int64 [V], the class of every token id, and the pad token's; None where no layer looks at them."""
    if not config.engram_layer_ids:
        return None, 0
    if token_classes is None:
        raise ValueError("this model has engram layers and needs token_classes (see deepinfer.arch.engram)")
    if len(token_classes) != config.vocab_size:
        raise ValueError(f"token_classes has {len(token_classes)} entries for a vocabulary of {config.vocab_size}")
    return torch.from_numpy(np.asarray(token_classes, dtype=np.int64)), int(token_classes[config.engram_pad_token_id])


def check_compact(config: V41Config, compact: bool) -> None:
    later = [layer for layer in config.kv_source_layer_ids if layer > config.boundary]
    assert not (compact and later), "entries of a layer past the boundary would lack the rows that were dropped"
