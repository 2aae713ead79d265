"""Layouts of other sizes than the options of conf/parallel have: chosen by their degrees, key by key."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from deepinfer.config.errors import nearest

_OPTION = re.compile(r"(ep|dp|cp)([1-9]\d{0,4})")  # how options of conf/parallel are called
_KEYS = {"ep": ("attention_dp", "expert"), "dp": ("attention_dp",), "cp": ("context",)}


def as_degrees(choice: str, option: str, options: Iterable[str], overrides: Iterable[str]) -> tuple[str, str]:
    """Why a layout such as ep24 is another one, and overrides for it; `choice` is where it was chosen: parallel, or
    parallel@deploy.decode.parallel. A degree that the experts of the model of all `overrides` are not divisible by becomes the
    next smaller that they are; the first answer is empty otherwise.

    Both empty for another group, for a name that speaks of no degrees, and for one of the `options` with letters swapped.
    """
    options = list(options)
    group, _, package = choice.partition("@")
    match = _OPTION.fullmatch(option)
    if group != "parallel" or not match or nearest(option, options, cutoff=1):
        return "", ""
    kind, asked, place = match[1], int(match[2]), package or group
    chosen = dict(text.lstrip("+").partition("=")[::2] for text in overrides)
    experts = _experts(chosen, place) if kind == "ep" else ()
    degree = next(n for n in range(asked, 0, -1) if not any(count % n for count in experts))
    why = f"{experts[0]} experts are not divisible by {asked}" if experts and experts[0] % asked else ""
    if degree != asked and not why:
        why = f"{experts[-1]} draft experts are not divisible by {asked}"
    if degree != asked and f"{kind}{degree}" in options:
        return why, f"{choice}={kind}{degree}"
    return why, " ".join([f"{choice}=single", *(f"{place}.{name}={degree}" for name in _KEYS[kind])])


def _experts(chosen: Mapping[str, str], place: str) -> tuple[int, ...]:
    """Numbers of experts that a degree has to divide; none for a model in a folder of the user's."""
    if chosen.get("model.path", "null") != "null":
        return ()
    model = chosen.get("model.name", chosen.get("model", "auto"))
    chips = {value for key, value in chosen.items() if key.partition("@")[0] == "hardware"}
    if model == "auto":
        model = "v41_tiny" if chips <= {"cpu"} and "cluster" not in chosen else "v41_flash"
    trunk, draft = _shipped(model)
    copies = chosen.get(f"{place}.redundant_experts", "0")
    trunk += int(copies) if copies.isdecimal() else 0
    return (trunk, draft) if chosen.get("speculation", "").startswith("dspark") else (trunk,)


@cache
def _shipped(model: str) -> tuple[int, int]:
    """Experts, and experts of a draft layer, of a model that deepinfer knows; of the released one for another name."""
    known = model if model in ("v41_tiny", "v41_flash") else "v41_flash"
    text = (files("deepinfer") / "assets" / known / "config.json").read_text("utf-8")
    config = json.loads(text)["text_config"]
    return config["n_routed_experts"], config["dspark_n_routed_experts"]
