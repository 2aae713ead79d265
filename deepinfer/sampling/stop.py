"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a text at the first stop string and holds back only what may still become one.

    The match that is complete first wins; among those that end together, the longest. So the result depends on the text
    alone, never on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._include = include
        self.met: str | None = None  # which one cut the text
        self._held = ""  # the end of the text so far that is the beginning of a stop string

    def push(self, piece: str, *, may_stop: bool = True) -> tuple[str, bool]:
        """(text that is free to go, whether a stop string was met). With `may_stop` false, one that ends here is text."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        if may_stop:
            match = self._first_match(text, len(self._held))
            if match is not None:
                start, end = match
                self._held, self.met = "", text[start:end]
                return text[: end if self._include else start], True
        free = len(text) - self._growing(text)
        self._held = text[free:]
        return text[:free], False

    def flush(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, known: int) -> tuple[int, int] | None:
        """Start and end of the first stop string that ends beyond `known` characters."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, known + 1 - len(stop)))
            if start >= 0 and (best is None or start + len(stop) < best[1]):
                best = (start, start + len(stop))
        return best

    def _growing(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string and is shorter than it."""
        for length in range(min(len(text), len(self._stops[0]) - 1), 0, -1):
            tail = text[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
