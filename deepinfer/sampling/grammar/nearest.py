"""The known name that a mistyped one is nearest to."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def near(word: str, known: Iterable[str]) -> str:
    """Empty where nothing is near."""
    names = list(known)
    found = get_close_matches(word, names, n=1, cutoff=0.75)
    longer = [name for name in names if len(word) > 2 and name.startswith(word)]  # str, int, bool
    return next(iter([*found, *longer]), "")
