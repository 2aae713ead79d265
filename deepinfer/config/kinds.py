"""Options by the kind that their file gives them: what to type where only a kind is known. Read where something is refused."""

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from deepinfer.config.misnamed import options_of


@cache
def options_of_kind(group: str, kind: str) -> tuple[str, ...]:
    """Names of our own options of a group whose kind is this one, sorted; one that is called like it, or blank, comes first."""
    found = [option for option in options_of(group) if _kind(group, option) == kind]
    return tuple(sorted(found, key=lambda option: (option not in (kind, "blank"), option)))


def _kind(group: str, option: str) -> Any:
    """The kind of an option, which a file may leave to the one that it builds on."""
    data = yaml.safe_load((files("deepinfer.conf") / group / f"{option}.yaml").read_text(encoding="utf-8"))
    inside = data.get(group)
    kind = data.get("kind") or (inside.get("kind") if isinstance(inside, dict) else None)
    bases = [base for base in data.get("defaults", ()) if isinstance(base, str) and base in options_of(group)]
    return kind or next((_kind(group, base) for base in bases), None)
