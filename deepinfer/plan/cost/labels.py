"""How a figure was come by."""

from typing import Literal

Label = Literal["roofline", "calibrated", "measured"]


def labelled(label: Label, stand_in: str) -> str:
    """A label in words: "calibrated", or "calibrated by sm90's shares" where those stand in for the chip's own."""
    return f"{label} by {stand_in}'s shares" if stand_in and label != "roofline" else label
