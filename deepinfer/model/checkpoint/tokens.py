"""Engram token classes, recounted from a checkpoint's own tokenizer."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from deepinfer.arch.engram import token_classes


def engram_classes(tokenizer_path: Path, vocab_size: int) -> np.ndarray:
    """Class of every token id, int64 [vocab_size], by the tokenizer in `tokenizer_path` (a tokenizer.json)."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    return token_classes(
        vocab_size,
        decode=lambda token: tokenizer.decode([token], skip_special_tokens=False),
        piece=tokenizer.id_to_token,
    )
