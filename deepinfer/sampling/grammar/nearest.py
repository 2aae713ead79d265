"""The known name that a mistyped one is nearest to."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """Empty where nothing is near."""
    found = get_close_matches(word, list(known), n=1, cutoff=0.75)
    return found[0] if found else ""
