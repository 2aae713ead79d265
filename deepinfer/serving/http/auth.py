"""API keys: kept as hashes in a file, found in `Authorization: Bearer` or `x-api-key`.

Keys are 256 random bits, so one SHA-256 is all that a hash at rest needs: there is nothing to guess from it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepinfer.serving.http.limits import KeyLimits, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "sk-deepinfer-"
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key of the file. `id` stands in logs and keeps cached prefixes apart; it is not the key."""

    id: str
    hash: str
    limits: KeyLimits = KeyLimits()

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"id {self.id!r:.80}: 1 to 64 letters, digits, '_', '.' and '-'")
        if not _HASH.fullmatch(self.hash):
            raise ValueError(f"the hash of {self.id} is not sha256: and 64 hexadecimal digits")


class Key:
    """A key that may ask, and what it has used."""

    def __init__(self, key_id: str, limits: KeyLimits) -> None:
        self.id, self.usage = key_id, Usage(limits)


class Keys:
    """All keys of a file. An empty table lets nobody in."""

    def __init__(self, entries: Sequence[KeyEntry]) -> None:
        self._by_hash = {entry.hash: Key(entry.id, entry.limits) for entry in entries}
        ids = [entry.id for entry in entries]
        twice = sorted({each for each in ids if ids.count(each) > 1})
        if twice or len(self._by_hash) < len(entries):
            raise ValueError(f"{', '.join(twice) or 'a hash'} stands there twice: every key has an id of its own")

    def __len__(self) -> int:
        return len(self._by_hash)

    def find(self, secret: str) -> Key | None:
        """The key that this text is. Looked up by its hash, so that time tells nothing of the keys there are."""
        return self._by_hash.get(hash_of(secret))


def hash_of(secret: str) -> str:
    return f"sha256:{hashlib.sha256(secret.encode('utf-8', 'surrogateescape')).hexdigest()}"


def read_keys(path: str | Path) -> Keys:
    """The keys of a YAML file: a list of {id, hash, limits}. Raises ValueError with the file's name, or OSError."""
    try:
        return Keys(msgspec.yaml.decode(Path(path).read_bytes(), type=list[KeyEntry]))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def new_key(key_id: str) -> tuple[str, str]:
    """(a new key, its entry for the file as YAML). The key is shown once and kept nowhere. Raises ValueError for the id."""
    secret = PREFIX + secrets.token_urlsafe(32)
    entry = KeyEntry(id=key_id, hash=hash_of(secret))
    return secret, f"- id: {entry.id}\n  hash: {entry.hash}\n"


def secret_of(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The key that a request brings, None where it brings none."""
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip().decode("utf-8", "surrogateescape")
    token = found.get(b"x-api-key", b"").strip()
    return token.decode("utf-8", "surrogateescape") if token else None
