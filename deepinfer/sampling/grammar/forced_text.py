"""Text that must follow, as tokens: only proposals for drafts, and each of them legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from deepinfer.sampling.grammar.backend import Matcher, Vocabulary

_MOST_LEGAL = 64  # more legal tokens than this begin no single text
_MOST_TOKENS = 16


def forced_tokens(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    """Tokens of the longest text that every legal token begins, as the tokenizer would cut it. Leaves the matcher as it was."""
    longest: list[int] = []
    while len(longest) < _MOST_TOKENS and not matcher.is_complete:
        token_id = _longest_of_one_text(matcher.mask(), vocabulary)
        if token_id is None or matcher.accept([token_id]) is not None:
            break
        longest.append(token_id)
    matcher.rollback(len(longest))
    if any(token_id in vocabulary.special for token_id in longest):
        return longest
    text = b"".join(map(vocabulary.tokenizer.token_bytes, longest)).decode(errors="ignore")
    usual = vocabulary.tokenizer.encode(text)
    if usual == longest or matcher.accept(usual) is not None:
        return longest
    matcher.rollback(len(usual))
    return usual


def _longest_of_one_text(mask: np.ndarray, vocabulary: Vocabulary) -> int | None:
    """The longest legal token, where all others are beginnings of it."""
    words = np.flatnonzero(mask)
    if not len(words) or len(words) > _MOST_LEGAL:
        return None
    bits = np.unpackbits(mask[words].view(np.uint8).reshape(len(words), 4), axis=1, bitorder="little")
    rows, columns = np.nonzero(bits)
    legal = (words[rows] * 32 + columns).tolist()
    if len(legal) > _MOST_LEGAL:
        return None
    texts = [vocabulary.tokenizer.token_bytes(token_id) for token_id in legal]
    best = max(range(len(legal)), key=lambda index: len(texts[index]))
    return legal[best] if all(texts[best].startswith(text) for text in texts) else None
