"""A byte-level BPE tokenizer from `tokenizer.json`, with the bytes of every token at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deepinfer.sampling.tokenizer_file import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence


class BpeTokenizer:
    """Implements `interfaces.Tokenizer` over the `tokenizers` library.

    Raises TokenizerError (a ValueError) when the file is missing, is no tokenizer, or is not byte-level: only then does
    every token have bytes of its own, which exact streaming needs.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._tokenizer = load_tokenizer(self.path)
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        added = self._tokenizer.get_added_tokens_decoder()
        self._bytes = [b""] * (max(vocabulary.values()) + 1)
        self._special = {token_id for token_id, token in added.items() if token.special}
        byte_of = _byte_of_character()
        for token, token_id in vocabulary.items():
            if token_id in added or any(character not in byte_of for character in token):
                self._bytes[token_id] = token.encode()
            else:
                self._bytes[token_id] = bytes(byte_of[character] for character in token)
        self._longest_bytes = max(map(len, self._bytes))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id; a model's vocabulary may be padded beyond it."""
        return len(self._bytes)

    def fewest_tokens(self, text: str) -> int:
        """No text of its size has fewer: found at once, where `encode` takes seconds for megabytes."""
        return -(-len(text.encode("utf-8", "surrogatepass")) // self._longest_bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, nothing added. The spelling of a special token becomes that token."""
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids  # unlike `encode`, without the GIL

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        pieces = (
            self.token_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self._special)
        )
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, those of its spelling for a special one; none for an id that no token has."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_id(self, token: str) -> int | None:
        """The id of one token by its spelling, as for `<think>`."""
        return self._tokenizer.token_to_id(token)

    def text_bytes(self, vocab_size: int) -> list[bytes]:
        """Bytes of every token as they reach an answer's text: none for special tokens and for padding."""
        return [b"" if token_id in self._special else self.token_bytes(token_id) for token_id in range(vocab_size)]


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes printable Latin-1 bytes as themselves and the other 68, in order, as U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
