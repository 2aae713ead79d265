"""Tokens to text as they come, never half a character."""

from __future__ import annotations

import codecs
from typing import Protocol


class TokenBytes(Protocol):
    """What is asked of a tokenizer, such as `BpeTokenizer`."""

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """The text of one answer, token by token. Joined, its pieces are `tokenizer.decode` of all tokens.

    Bytes that may still grow into a character wait; U+FFFD stands only for bytes that no later token can mend.
    """

    def __init__(self, tokenizer: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; often none."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished, else nothing."""
        return self._utf8.decode(b"", final=True)
