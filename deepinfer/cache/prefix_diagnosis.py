"""Why a prefix cache never hits although prompts begin alike: counted by cause, said once."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from dataclasses import dataclass

import numpy as np

PROBE_TOKENS = 32  # prompts that share this many first tokens are taken to share a prefix
REMEMBERED = 4096  # newest beginnings of prompts
TELL_AFTER = 16  # prompts that shared a prefix without a hit
SHORTER = "prompts of no more than one block"
LESS_THAN_A_BLOCK = "less than one block shared"
OTHER_SALT = "cache salts differ"
EVICTED = "blocks evicted before they were asked for again"
AT_ONCE = "still being computed when the next one came"
NO_SNAPSHOT = "no snapshot of the window keys was kept"
NO_BUDGET = "cache.snapshot_bytes has room for no snapshot"


@dataclass(slots=True)
class Beginning:
    """What the newest prompt with these first tokens looked like."""

    salt: str
    first_block: bytes | None  # hash of its tokens; None where the prompt has no whole block


class MissDiagnosis:
    """Watches prompts until the first hit, or until it has told what is the matter."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._beginnings: OrderedDict[bytes, Beginning] = OrderedDict()
        self._causes: Counter[str] = Counter()
        self._done = False
        self._notice: str | None = None

    def hit(self) -> None:
        """It works: nothing more to find out."""
        self._done = True
        self._beginnings.clear()

    def miss(self, tokens: np.ndarray, salt: str, *, num_matched: int, cause: str, evictions: bool) -> None:
        """A prompt got nothing from the cache. `cause` is known where the prompt itself forbids a hit, or blocks were there
        (`num_matched` of them) and could not be used."""
        if self._done or len(tokens) < PROBE_TOKENS:
            return
        probe = _hash(tokens[:PROBE_TOKENS])
        block = _hash(tokens[: self.block_tokens]) if len(tokens) >= self.block_tokens else None
        before = self._beginnings.pop(probe, None)
        self._beginnings[probe] = Beginning(salt, block)
        if len(self._beginnings) > REMEMBERED:
            self._beginnings.popitem(last=False)
        if before is None:
            return
        if not cause:
            cause = self._cause(before, salt, block, evictions)
        self._causes[cause] += 1
        if self._causes.total() >= TELL_AFTER:
            self._notice = self._text()
            self.hit()

    def take_notice(self) -> str | None:
        """What is to be said, once."""
        notice, self._notice = self._notice, None
        return notice

    def _cause(self, before: Beginning, salt: str, block: bytes | None, evictions: bool) -> str:
        if block is None or before.first_block != block:
            return LESS_THAN_A_BLOCK
        if before.salt != salt:
            return OTHER_SALT
        return EVICTED if evictions else AT_ONCE

    def _text(self) -> str:
        causes = "; ".join(f"{count} × {cause}" for cause, count in self._causes.most_common())
        shared = PROBE_TOKENS if self._causes[LESS_THAN_A_BLOCK] + self._causes[SHORTER] else self.block_tokens
        return (
            f"prefix cache: 0 hits although {self._causes.total()} prompts shared {shared} tokens or more with an earlier one "
            f"(blocks of {self.block_tokens}): {causes}"
        )


def _hash(tokens: np.ndarray) -> bytes:
    return hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=16).digest()
