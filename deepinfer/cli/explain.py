"""`plan explain=KEY`: who set a value and what that replaced, how an "auto" was settled, and what depends on it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from deepinfer.cli.decided import decision_of
from deepinfer.cli.elsewhere import of_another_option
from deepinfer.cli.parts import Part, parts_of
from deepinfer.cli.what_if import Settled, Tried, tries
from deepinfer.cli.words import words_of
from deepinfer.config.argv import Invocation
from deepinfer.config.convert import show
from deepinfer.config.errors import Problem, Refused, nearest
from deepinfer.config.history import Origin
from deepinfer.config.keys import text_keys
from deepinfer.config.meanings import meaning_of
from deepinfer.config.misnamed import explainable, options_of
from deepinfer.config.neighbours import neighbours, other_options
from deepinfer.config.provenance import Provenance, trace
from deepinfer.config.specs import Spec
from deepinfer.plan.quantities import size
from deepinfer.plan.types import Decision, Plan

LABEL = 10  # columns
PRIMARY = "conf/config.yaml"  # where every group's default option is chosen
SOURCED = ("source", "date", "note")  # what stands beside the value of a figure from elsewhere
NOT_TRIED = ("task",)  # groups of which another option is another program


class Former(msgspec.Struct, frozen=True, kw_only=True):
    """A value that somebody later replaced."""

    value: str
    origin: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key, group or part of a plan. `replaced` is newest first; `tried` are neighbours, the last of which planned."""

    key: str
    value: str
    meaning: str = ""
    asked: str = ""
    origin: str = ""
    source: str = ""  # of a figure: who published or measured it, and when
    chosen: str = ""  # by whom the option whose file says so
    replaced: tuple[Former, ...] = ()
    because: str = ""
    second: str = ""
    estimate: str = ""
    needs: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    not_tried: str = ""  # why no neighbour was tried

    def text(self) -> str:
        """A few lines for people."""
        second = f"{self.second}{f': {self.estimate}' if self.estimate else ''}"
        rows = [
            ("asked", f"{self.asked} ({self.origin})" if self.origin else ""),
            ("source", self.source),
            ("through", self.chosen),
            *(("replaced", f"{former.value} ({former.origin})") for former in self.replaced),
            ("means", self.meaning),
            ("because", self.because),
            ("second", second),
            ("needs", " ".join(self.needs)),
            ("for", " ".join(self.needed_by)),
        ]
        told = [(label, row) for label, row in rows if row]
        told += [row for each in self.tried for row in each.rows()]
        told += [("tried", f"nothing: {self.not_tried}")] if self.not_tried else []
        in_words = f" ({size(int(self.value), 4)})" if self.key.endswith("_bytes") and self.value.isdecimal() else ""
        return "\n".join([f"{self.key} = {self.value}{in_words}", *(f"  {label:<{LABEL}}{row}" for label, row in told)])


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What an explanation is made from. Without `settled` the plan was refused."""

    invocation: Invocation
    provenance: Provenance
    settled: Settled | None

    @property
    def plan(self) -> Plan | None:
        return self.settled.plan if self.settled else None

    def tries(self, lever: str, others: Sequence[Any]) -> tuple[Tried, ...]:
        """What moves when the key or group `lever` is one of `others`."""
        return tries(lever, others, self.invocation, self.settled) if self.settled and lever else ()


def explain(key: str, spec: Spec, invocation: Invocation, settled: Settled | None = None) -> list[Explanation]:
    """One dotted key or group of the configuration; or what only a plan has: an op, a line of memory, a part of the
    graph, a figure of its cost; or all of a section ("ops", "memory", "graph", "cost").

    Without a plan (it was refused) only a key or a group can be explained. Raises Refused for anything unknown.
    """
    provenance = trace(invocation.overrides, invocation.texts, invocation.config_dir)
    scene = Scene(invocation=invocation, provenance=provenance, settled=settled)
    values = _flat(msgspec.to_builtins(spec))
    parts = all_parts(settled.plan) if settled else {}
    if group := _group(key, invocation.choices):
        section = [part for name, part in parts.items() if name.startswith(f"{key}.") and name not in values]
        return [_of_group(group, scene), *(_of_part(part, scene, vary=False) for part in section)]
    if leaves := [name for name in values if name == key or name.startswith(f"{key}.")]:
        beside = _beside(values, leaves)
        told = [name for name in leaves if name not in beside]
        return [_of_key(name, values, scene, vary=_varies(name, key)) for name in told]
    if found := parts_called(key, parts):
        return [_of_part(part, scene, vary=len(found) == 1) for part in found]
    if homes := [name for name in values if name.rpartition(".")[2] == key]:  # the last name of a key is enough
        return [_of_key(name, values, scene, vary=len(homes) == 1) for name in homes]
    words = [name for part in parts for name in _names(part)]
    raise Refused([_unknown(key, [*values, *invocation.choices, *words], invocation.overrides)])


def all_parts(plan: Plan) -> dict[str, Part]:
    """What a plan has, and under which words its text speaks of it."""
    parts = parts_of(plan)
    named = {name.partition(".")[0] + "." + name.rpartition(".")[2] for name in parts}
    return parts | {part.key: part for part in words_of(plan) if part.key not in named}


def parts_called(word: str, parts: dict[str, Part]) -> list[Part]:
    """The parts that a word of a plan's text or data may mean, such as "a user" or "usable_bytes"."""
    name = word.strip().replace(" ", "_")
    for asked in (name, name.removesuffix("_bytes")):
        if found := [part for key, part in parts.items() if asked in _names(key)]:
            return found
    return []


def _unknown(key: str, known: Sequence[str], overrides: Sequence[str]) -> Problem:
    """A word that is no key here: another engine's, or a slip."""
    if problem := of_another_option(key, overrides):
        return problem
    why, ours = explainable(key)
    close = ours or nearest(key, known)
    fix = f"plan explain={close}" if close else ""
    return Problem(asked=f"explain={key}", found="no such key in this configuration", why=why, fix=fix)


def _beside(values: dict[str, Any], leaves: Sequence[str]) -> set[str]:
    """Of several leaves those that only say where another one, the figure, comes from."""
    figures = [name.removesuffix("value") for name in leaves if name.endswith(".value")]
    return {f"{figure}{name}" for figure in figures for name in SOURCED if f"{figure}{name}" in values}


def _source(key: str, values: dict[str, Any]) -> str:
    """Who says so, when, and what they add; empty for all but figures."""
    if not key.endswith(".value"):
        return ""
    source, date, note = (values.get(f"{key.removesuffix('value')}{name}") or "" for name in SOURCED)
    return "; ".join(filter(None, (", ".join(filter(None, (source, date))), note)))


def _varies(name: str, key: str) -> bool:
    """Whether a neighbour of the leaf `name` tells what depends on `key`: of a figure with its source, the figure."""
    return name in (key, f"{key}.value")


def _group(key: str, choices: dict[str, str]) -> str:
    """The choice that a key names: a group, group@package, or the package alone; empty for none."""
    if key in choices:
        return key
    return next((choice for choice in choices if choice.partition("@")[2] == key), "")


def _names(name: str) -> set[str]:
    """What a part of a plan may be called: "memory.decode.experts", its section, or its own name alone."""
    section, _, rest = name.partition(".")
    return {name, section, rest, rest.rpartition(".")[2]}


def _of_group(group: str, scene: Scene) -> Explanation:
    option = scene.invocation.choices[group]
    decision, _ = decision_of(group, option, scene.plan)
    now = decision.value if decision else option
    others = [name for name in other_options(option, options_of(group.partition("@")[0])) if name != now]
    return Explanation(
        key=group,
        value=now,
        **_asked(scene.provenance.of(group), option),
        **_settled(decision),
        tried=scene.tries(group, others) if group not in NOT_TRIED else (),
        not_tried="another task is another command" if group in NOT_TRIED else "",
    )


def _of_key(key: str, values: dict[str, Any], scene: Scene, *, vary: bool) -> Explanation:
    value = values[key]
    decision, around = decision_of(key, value, scene.plan)
    others = neighbours(key, value, around)
    origins = scene.provenance.of(key)
    return Explanation(
        key=key,
        value=decision.value if decision else show(value),
        meaning=meaning_of(key),
        **_asked(origins, show(value)),
        source=_source(key, values),
        chosen=_through(key, origins, scene),
        **_settled(decision),
        tried=scene.tries(key, others) if vary else (),
        not_tried=_why_not(key) if scene.plan and vary and not others else "",
    )


def _of_part(part: Part, scene: Scene, *, vary: bool) -> Explanation:
    """A part of a plan; and what depends on the option behind it."""
    fields = {name: getattr(part, name) for name in ("key", "value", "because", "second", "needs", "needed_by")}
    return Explanation(**fields, tried=scene.tries(part.lever, part.others) if vary else ())


def _asked(origins: tuple[Origin, ...], otherwise: str) -> dict[str, Any]:
    if not origins:
        return {"asked": otherwise, "origin": "nobody: the default of this key"}
    *former, last = origins
    replaced = tuple(Former(value=show(origin.value), origin=str(origin)) for origin in reversed(former))
    return {"asked": show(last.value), "origin": str(last), "replaced": replaced}


def _settled(decision: Decision | None) -> dict[str, Any]:
    if decision is None:
        return {}
    return {"because": decision.rule, "second": decision.runner_up, "estimate": decision.estimate}


def _through(key: str, origins: tuple[Origin, ...], scene: Scene) -> str:
    """Which choice brought in the file that sets a key, and who made it; empty where it is the default."""
    file, choices = origins[-1].file if origins else "", scene.invocation.choices
    packages = {choice.partition("@")[2] or choice: choice for choice in choices}
    group = packages.get(max((name for name in packages if key.startswith(f"{name}.")), key=len, default=""), "")
    chooser = scene.provenance.last(group) if group else None
    if not file or chooser is None or chooser.file == PRIMARY or f"{group.partition('@')[0]}/" not in file:
        return ""
    return f"{group}={choices[group]} ({chooser})"


def _why_not(key: str) -> str:
    return "it is free text" if key in text_keys() else "no other value suggests itself"


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted key → leaf of nested mappings."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{path}.{name}".lstrip(".")).items()
    }
