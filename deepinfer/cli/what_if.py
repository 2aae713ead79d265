"""What depends on a value: take a neighbour of it, plan again in this process, and see what moves."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from deepinfer.config.argv import CommandLine, Invocation
from deepinfer.config.compose import read
from deepinfer.config.convert import show
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.facts import probe
from deepinfer.config.probes import MachineFacts
from deepinfer.plan.changes import lines, notable
from deepinfer.plan.compare import SECTIONS, Change, compare
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

MAX_TRIES = 4  # until one of them plans; each takes as long as a plan
SHOWN = 8  # changes of one section that the text lists


class Tried(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One neighbour: the override, and what moved in the plan, or why there would be no plan."""

    override: str
    refused: tuple[Problem, ...] = ()
    changes: tuple[Change, ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        if self.refused:
            first, more = self.refused[0], len(self.refused) - 1
            why = f"; {first.why}" if first.why else ""
            others = f" (and {more} more)" if more else ""
            whose = "" if first.asked == self.override else f"{first.asked}: "  # a consequence further on
            return [("tried", self.override), ("refused", f"{whose}{first.found}{why}{others}")]
        told, hidden = notable(self.changes)
        moved = lines(told, at_most=SHOWN) or [f"{'hardly anything' if hidden else 'nothing'} in this plan"]
        return [("tried", self.override), *(("moves" if not i else "", row) for i, row in enumerate(moved))]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and the machine that it was made for: a second look at the machine finds other free memory."""

    plan: Plan
    machine: MachineFacts


def tries(key: str, values: Iterable[Any], invocation: Invocation, settled: Settled) -> tuple[Tried, ...]:
    """The neighbours of a key or a group, in order, up to the first that plans."""
    found: list[Tried] = []
    for value in values:
        found.append(_try(key, value, invocation, settled))
        if not found[-1].refused or len(found) == MAX_TRIES:
            break
    return tuple(found)


def _try(key: str, value: Any, invocation: Invocation, settled: Settled) -> Tried:
    override = f"{key}={_typed(value)}"
    kept = [text for text in invocation.overrides if text.lstrip("+").partition("=")[0] != key]
    texts = {name: text for name, text in invocation.texts.items() if name != key}
    line = CommandLine(verb=None, flags=(), words={}, texts=texts, overrides=(*kept, override), problems=())
    try:
        spec, choices = read(line, config_dir=invocation.config_dir)
        other = resolve(spec, msgspec.structs.replace(probe(spec), machine=settled.machine), choices)
    except Refused as refused:
        return Tried(override=override, refused=refused.problems)
    return Tried(override=override, changes=_consequences(key, compare(settled.plan, other)))


def _typed(value: Any) -> str:
    """A value as an override has it; the keys of a mapping bare, which is how Hydra reads them."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {show(item)}' for name, item in value.items())}}}"
    return show(value)


def _consequences(key: str, changes: Sequence[Change]) -> tuple[Change, ...]:
    """Changes without those that only repeat what was tried (the choice, the setting, its copy in the graph), and
    without those that only put another one in words."""
    leaf = key.partition(".")[2]
    echoes = {key, f"{SECTIONS['choices']}.{key}"}
    return tuple(
        change
        for change in changes
        if change.path not in echoes
        and not (change.section == "graph" and leaf and change.key.endswith(f"settings.{leaf}"))
        and not (change.section == SECTIONS["decisions"] and change.key == key and change.after is None)
        and not change.is_prose
    )
