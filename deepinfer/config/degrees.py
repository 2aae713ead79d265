"""Layouts of other sizes than the options of conf/parallel have: chosen by their degrees, key by key."""

import re
from collections.abc import Iterable

from deepinfer.config.errors import nearest

_OPTION = re.compile(r"(ep|dp|cp)([1-9]\d{0,4})")  # how options of conf/parallel are called
_KEYS = {"ep": ("attention_dp", "expert"), "dp": ("attention_dp",), "cp": ("context",)}


def as_degrees(choice: str, option: str, options: Iterable[str]) -> str:
    """The overrides for a layout such as ep24; `choice` is where it was chosen: parallel, or parallel@deploy.decode.parallel.

    Empty for another group, for a name that speaks of no degrees, and for one of the `options` with letters swapped.
    """
    group, _, package = choice.partition("@")
    match = _OPTION.fullmatch(option)
    if group != "parallel" or not match or nearest(option, options, cutoff=1):
        return ""
    keys = " ".join(f"{package or group}.{name}={match[2]}" for name in _KEYS[match[1]])
    return f"{choice}=single {keys}"
