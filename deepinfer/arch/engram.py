"""Constants of the engram n-gram hash: token classes, primes, row offsets and multipliers. All exact integers."""

import re
import unicodedata
from collections.abc import Callable, Iterable

import msgspec
import numpy as np

from deepinfer.arch.config import V41Config

_WHITESPACE_RUN = re.compile("[ \t\r\n]+")


class EngramTable(msgspec.Struct, frozen=True, kw_only=True):
    """Hash of one engram layer. Column order everywhere: n-gram order (2, 3, …) major, head minor."""

    layer: int
    multipliers: tuple[int, ...]
    primes: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.primes)


def engram_tables(config: V41Config) -> list[EngramTable]:
    """One table per engram layer. Primes are never reused across layers, orders and heads."""
    used: set[int] = set()
    tables = []
    for layer in config.engram_layer_ids:
        primes: list[int] = []
        for _ in range(config.engram_max_ngram_size - 1):
            start = config.engram_vocab_size - 1
            for _ in range(config.engram_n_heads):
                start = _next_unused_prime(start, used)
                used.add(start)
                primes.append(start)
        offsets = tuple(int(x) for x in np.cumsum([0, *primes[:-1]]))
        multipliers = engram_multipliers(layer, config.engram_compressed_vocab_size, config.engram_max_ngram_size)
        tables.append(EngramTable(layer=layer, multipliers=multipliers, primes=tuple(primes), offsets=offsets))
    return tables


def engram_multipliers(layer: int, num_classes: int, max_ngram_size: int) -> tuple[int, ...]:
    """Odd int64 multipliers, one per n-gram slot; they depend on the class count, so a wrong count changes every row."""
    bound = (2**63 - 1) // num_classes // 2
    draws = np.random.default_rng(10007 * layer).integers(0, bound, size=max_ngram_size, dtype=np.int64)
    return tuple(int(x) for x in draws * 2 + 1)


def token_classes(vocab_size: int, decode: Callable[[int], str], piece: Callable[[int], str | None]) -> np.ndarray:
    """Class of every token id, int64 [vocab_size], numbered in first-seen order.

    `decode(id)` is the text of that one token with special tokens kept; `piece(id)` its raw vocabulary entry, used where the
    text holds U+FFFD. Ids beyond the tokenizer's vocabulary (piece None) each form a class of their own.
    """
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(key, len(numbers)) for key in _class_keys(vocab_size, decode, piece)], dtype=np.int64
    )


def _class_keys(vocab_size: int, decode: Callable[[int], str], piece: Callable[[int], str | None]) -> Iterable[str]:
    for token in range(vocab_size):
        raw = piece(token)
        text = decode(token)
        if raw is None:
            yield f"\x00unassigned {token}"
        elif "\ufffd" in text:
            yield raw
        else:
            yield _normalise(text)


def _normalise(text: str) -> str:
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    folded = "".join(char.lower() for char in folded if unicodedata.category(char) != "Mn")
    folded = _WHITESPACE_RUN.sub(" ", folded)
    if folded == " ":
        return folded
    return folded.strip() or text


def _next_unused_prime(start: int, used: set[int]) -> int:
    candidate = start + 1
    while candidate in used or not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    divisors = np.arange(2, int(number**0.5) + 1)
    return bool((number % divisors).all())
