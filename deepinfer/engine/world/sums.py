"""The counters of several engines as one record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from deepinfer.engine.stats import EngineStats, PrefixStats


def summed(each: Sequence[EngineStats], *, refused: int = 0) -> EngineStats:
    """Sums of all counters and times; `refused` requests reached no engine."""
    total = _sum(EngineStats, each)
    return msgspec.structs.replace(total, refused=total.refused + refused)


def _sum(kind: type, records: Sequence[Any]) -> Any:
    return kind(**{name: _added([getattr(one, name) for one in records]) for name in kind.__struct_fields__})  # type: ignore[attr-defined]


def _added(values: Sequence[Any]) -> Any:
    first = values[0]
    if first is None:
        return None
    if isinstance(first, PrefixStats):
        return _sum(PrefixStats, values)
    if isinstance(first, dict):
        return {key: sum(value[key] for value in values) for key in first}
    if isinstance(first, list):
        return [sum(column) for column in zip(*values, strict=True)]
    return sum(values)
