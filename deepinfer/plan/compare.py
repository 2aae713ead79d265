"""Two plans as plain data, and what differs between them: by the name of each part, never by its place in a list."""

from collections.abc import Iterator
from typing import Any

import msgspec

from deepinfer.plan.cost.types import DecodeCost, PrefillCost
from deepinfer.plan.frozen import Frozen
from deepinfer.plan.types import Plan

SECTIONS = {  # fields of a plan that the text calls otherwise
    "deepinfer": "version",
    "choices": "chosen",
    "floors": "needs",
    "decisions": "decided",
    "notes": "note",
    "warnings": "warning",
    "rank_digest": "digest",
    "numerics_digest": "digest",
}
FIRST = ("deepinfer", "cost", "choices", "layout", "memory", "capacity")  # what people look for; of costs the headline
NAMES = ("name", "key", "op", "what", "role")  # the field that tells the parts of a list apart
MATTERS = ("value", "backend", "implementation", "num_bytes", "device_bytes", "at_least", "num_ranks", "what")
"""What a part is, in one word: the first of these that it has."""
SILENT = ("items", "headline", "roles", "value", "num_bytes", "backend", "implementation", "at_least")
"""Names that a key is understood without: memory.all.items.experts.num_bytes is memory.experts."""
PROSE = ("note", "rule", "reason", "why", "estimate", "runner_up", "option", "moves")
OF_FIRST_ROLE = ("hardware", "ops", "floors")  # that the plan repeats


class Change(Frozen, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that differs. None is "not there": a part that came or went has one side only."""

    section: str
    key: str  # of the section's parts, dotted; empty for a sentence
    before: Any = None
    after: Any = None
    unit: str = ""  # B, s, tokens, …; empty where a number counts or a text stands

    @property
    def path(self) -> str:
        return f"{self.section}.{self.key}" if self.key else self.section

    @property
    def is_prose(self) -> bool:
        """Whether this only puts into words what other changes are about."""
        name = self.key.rpartition(".")[2]
        return name in PROSE or name.endswith("source")


def compare(before: Plan, after: Plan) -> tuple[Change, ...]:
    """Everything in which two plans differ: costs, choices, layout, memory, then the rest; empty for equal plans.

    Reasons and rules are told only where nothing else differs: they put the other changes into words.
    """
    old, new = _data(before), _data(after)
    if before.hardware.measured and after.hardware.measured:
        _forget_free_memory(old, new)
    fields = [*FIRST, *(field for field in (old | new) if field not in FIRST)]
    changes: list[Change] = []
    for field in fields:
        for change in _field(field, old.get(field), new.get(field)):
            changes += [change] if change not in changes else []
    return tuple([change for change in changes if not change.is_prose] or changes)


def _data(plan: Plan) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(plan.to_json())
    for name in OF_FIRST_ROLE:
        data["layout"]["roles"][0].pop(name, None)
    for node in data["graph"]:
        if node["seam"] == "scheduler":
            node["settings"] = {}  # the plan's own `scheduler`
    for cost, step in ((plan.cost.prefill, "prefill"), (plan.cost.decode, "decode")):
        if cost is not None:
            data["cost"][step]["bound"] = bound_of(cost)
    return data


def bound_of(cost: PrefillCost | DecodeCost) -> str:
    """What holds up the steps of a role, by the best model that there is for them: "memory (experts)"."""
    step = (cost.point if isinstance(cost, DecodeCost) else cost).steps[-1]
    return f"{step.bound} ({step.bound_part})"


def _forget_free_memory(*plans: dict[str, Any]) -> None:
    """What a machine happened to have free at two moments is no difference between plans for it."""
    for data in plans:
        for part in (data["hardware"], *data["memory"]):
            for name in ("memory_bytes", "usable_bytes", "headroom_bytes"):
                part.pop(name, None)


def _field(field: str, old: Any, new: Any) -> Iterator[Change]:
    section = SECTIONS.get(field, field)
    if section == "digest":
        yield from _leaf(section, field.removesuffix("_digest"), old, new, "")
    elif section in ("note", "warning", "unbuilt"):
        yield from (Change(section=section, key="", before=sentence) for sentence in old if sentence not in new)
        yield from (Change(section=section, key="", after=sentence) for sentence in new if sentence not in old)
    else:
        yield from _value(section, "", old, new, "")


def _value(section: str, key: str, old: Any, new: Any, unit: str) -> Iterator[Change]:
    """Differences below one key. A part that only one side has is one difference, however much it holds."""
    if section == "layout" and key == "ranks":
        yield from _ranks(old, new)
        return
    if _is_named(old) and _is_named(new):
        old, new = _by_name(old), _by_name(new)
    elif section == "cost" and isinstance(old, list):
        return  # curves and tables: the figures that come out of them are told
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield from _leaf(section, key, old, new, unit)
        return
    for name in _told(old, new):
        if name in old and name in new:
            yield from _value(section, _joined(key, name), old[name], new[name], unit or _unit(name, new))
        else:
            was, is_now, unit_here = _whole(name, old.get(name), new.get(name))
            yield from _leaf(section, f"{key}.{name}".lstrip("."), was, is_now, unit or unit_here)


def _leaf(section: str, key: str, old: Any, new: Any, unit: str) -> Iterator[Change]:
    if section == SECTIONS["decisions"]:
        old, new, unit = _whole_number(old), _whole_number(new), _unit(key.partition(" ")[0], {})
    if old != new:
        yield Change(section=section, key=key, before=old, after=new, unit=unit)


def _told(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields of a part to compare: of those that say what it is, the first that differs says enough."""
    moved = [field for field in MATTERS if field in old and field in new and old[field] != new[field]]
    return [field for field in dict.fromkeys([*old, *new]) if field not in moved[1:]]


def _ranks(old: list[Any], new: list[Any]) -> Iterator[Change]:
    """Ranks are many and alike: only how many of them have another part than before."""
    moved = sum(one != other for one, other in zip(old, new, strict=False))
    if moved and len(old) == len(new):
        yield Change(section="layout", key="ranks with another part", before=0, after=moved)


def _is_named(value: Any) -> bool:
    """Whether a list's items can be told apart by a name of their own; an empty list can be anything."""
    return isinstance(value, list) and all(isinstance(item, dict) and _name(item) for item in value)


def _by_name(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Name → item; the second of one name is called "name 2"."""
    named: dict[str, Any] = {}
    for item in items:
        name, number = _name(item), 2
        while name in named:
            name, number = f"{_name(item)} {number}", number + 1
        named[name] = item
    return named


def _name(item: dict[str, Any]) -> str:
    return next((str(item[field]) for field in NAMES if isinstance(item.get(field), str) and item[field]), "")


def _joined(key: str, name: str) -> str:
    if name in SILENT or (name == "all" and not key):
        return key
    return f"{key}.{name}" if key else name


def _whole(name: str, old: Any, new: Any) -> tuple[Any, Any, str]:
    """A part that only one side has, told by the one field that matters most; and that field's unit."""
    part = new if old is None else old
    field = next((field for field in MATTERS if isinstance(part, dict) and part.get(field) not in (None, "")), "")
    value, unit = (part[field], _unit(field, part)) if field else (part, _unit(name, {}))
    return (None, value, unit) if old is None else (value, None, unit)


def _whole_number(value: Any) -> Any:
    """What a decision says, as a number where it is one."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _unit(name: str, around: Any) -> str:
    """The unit of a number by its name, or by the `unit` that stands beside it."""
    beside = around.get("unit") if isinstance(around, dict) else None
    if isinstance(beside, str) and name == "value":
        return beside
    if "bytes" in name.split("_") and not name.endswith("_per_s"):
        return "B"
    return "s" if name.endswith("_s") and "_per_" not in name else ""
