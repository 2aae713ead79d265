"""Two makes of the trained model along the same texts: prompts of three kinds, then token by token as the first likes best."""

from collections.abc import Callable

import torch
from fused_models import trained
from tokenizers import Tokenizer
from torch import Tensor

MARGIN = (
    2.0  # bfloat16: two logits of a row that are farther apart keep their order (a row's own error is 0.1 as a rule)
)
MEDIAN_ERROR, MOST_ERROR = 0.25, 0.75  # root mean square over a row's logits (they spread by 3.6); of 95 % of rows
PROMPTS = (
    "Once upon a time there was a small village near the river",
    "def add(a, b):\n    return",
    "The three numbers are 4, 8 and 15. The sum is",
)
Piece = tuple[list[int], int, int, int]  # all tokens of a sequence, first and end position, slot


def choose_the_same_tokens(logits_of: Callable[[list[Piece], Tensor], tuple[Tensor, Tensor]], steps: int) -> None:
    """`logits_of` runs pieces by both, and returns both's logits of some rows of the step."""
    tokenizer = Tokenizer.from_file(str(trained().tokenizer_path))
    texts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    done, errors, margins = [0] * len(texts), [], []
    for _ in range(steps):
        pieces = [(text, first, len(text), slot) for slot, (text, first) in enumerate(zip(texts, done))]
        last = torch.tensor([end - first for _, first, end, _ in pieces]).cumsum(0) - 1
        one, other = logits_of(pieces, last)
        done = [len(text) for text in texts]
        errors.append((one - other).square().mean(-1).sqrt())
        best = one.topk(2)
        margins.append(best.values[:, 0] - best.values[:, 1])
        chosen = one.argmax(-1)
        assert ((other.argmax(-1) == chosen) | (margins[-1] <= MARGIN)).all()
        for text, token in zip(texts, chosen.tolist()):
            text.append(token)
    assert (torch.cat(margins) > MARGIN).float().mean() >= 0.5, "most tokens were really compared"
    assert torch.cat(errors).median() <= MEDIAN_ERROR and torch.cat(errors).quantile(0.95) <= MOST_ERROR
