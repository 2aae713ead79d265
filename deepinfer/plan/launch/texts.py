"""Texts of a launch: what is one line, and how a message shows what is none."""

import unicodedata


def is_line(text: str) -> bool:
    """Whether a text is one line with something in it; what is not has been refused as a text."""
    return bool(text.strip()) and not any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in text)


def shown(text: str) -> str:
    """Text of a message, which stays one line."""
    return text if text.isprintable() else repr(text)[1:-1]
