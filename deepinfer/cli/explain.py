"""`plan explain=KEY`: where a value was written, and if it was "auto", how it was settled; what the plan says of an op."""

from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from deepinfer.config.argv import Invocation
from deepinfer.config.convert import show
from deepinfer.config.errors import Problem, Refused, nearest
from deepinfer.config.specs import Spec
from deepinfer.plan.types import Decision, Plan

LABEL = 10  # columns


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key: its value, what was asked and by whom, the rule that settled it, what came second at which cost."""

    key: str
    value: str
    asked: str = ""
    origin: str = ""
    because: str = ""
    second: str = ""
    estimate: str = ""

    def text(self) -> str:
        """A few lines for people."""
        second = f"{self.second}{f': {self.estimate}' if self.estimate else ''}"
        rows = (("asked", f"{self.asked} ({self.origin})" if self.origin else ""), ("because", self.because))
        told = [f"  {label:<{LABEL}}{row}" for label, row in (*rows, ("second", second)) if row]
        return "\n".join([f"{self.key} = {self.value}", *told])


def explain(key: str, spec: Spec, invocation: Invocation, plan: Plan) -> list[Explanation]:
    """One dotted key or group of the configuration; or what only a plan has: an op or all "ops", a line of "memory".

    Raises Refused for a key that neither has.
    """
    values, of_plan = _flat(msgspec.to_builtins(spec)), _of_plan(plan)
    if key not in values and key not in Spec.__struct_fields__:
        found = [item for name, item in of_plan.items() if key in _names(name)]
        if found:
            return found
        groups = dict.fromkeys(name.partition(".")[0] for name in of_plan)
        close = nearest(key, [*values, *Spec.__struct_fields__, *of_plan, *groups])
        fix = f"plan explain={close}" if close else ""
        raise Refused([Problem(asked=f"explain={key}", found="no such key in this configuration", fix=fix)])
    asked = (invocation.choices.get(key, "") if key in Spec.__struct_fields__ else show(values[key])) or ""
    decision = _decision(key, asked, plan)
    settled = (
        {"because": decision.rule, "second": decision.runner_up, "estimate": decision.estimate} if decision else {}
    )
    value = decision.value if decision else asked
    return [Explanation(key=key, value=value, asked=asked, origin=_origin(key, invocation), **settled)]


def _names(name: str) -> set[str]:
    """What a line of a plan may be called: "memory.decode.experts", its section, or its own name alone."""
    section, _, rest = name.partition(".")
    return {name, section, rest, rest.rpartition(".")[2]}


def _decision(key: str, asked: str, plan: Plan) -> Decision | None:
    """How an "auto" was settled, be it under the key itself or as a consequence of another one."""
    if found := next((decision for decision in plan.decisions if decision.key == key), None):
        return found
    if asked == "auto" and key == "cache.num_blocks":
        rule = f"as many blocks of {plan.model.padded_block_bytes:,} B as cache.memory_bytes holds"
        return Decision(key=key, value=f"{plan.capacity.num_blocks}", rule=rule)
    if asked == "auto" and key == "model.name":
        return next((decision for decision in plan.decisions if decision.key == "model"), None)
    return None


def _of_plan(plan: Plan) -> dict[str, Explanation]:
    """What a plan has that no key of the configuration sets by itself."""
    found = {
        f"ops.{choice.op}": Explanation(
            key=f"ops.{choice.op}", value=choice.backend, because=choice.reason, second=choice.runner_up
        )
        for choice in plan.ops
    }
    for memory in plan.memory:
        role = "" if memory.role == "all" else f"{memory.role}."
        for item in memory.items:
            note = item.note or ("as the ops hold it" if item.num_bytes else "")
            key = f"memory.{role}{item.name}"
            found.setdefault(key, Explanation(key=key, value=f"{item.num_bytes:,} B a rank", because=note))
    return found


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted key → leaf of nested mappings."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{path}.{name}".lstrip(".")).items()
    }


def _origin(key: str, invocation: Invocation) -> str:
    """The override, or the file, that says so."""
    for override in invocation.overrides:
        if override.lstrip("+").partition("=")[0] in (key, f"{key}@_global_"):
            return f"command line: {override}"
    if key in Spec.__struct_fields__:
        return "conf/config.yaml"
    package, group, option = _group_of(key, invocation.choices)
    names = key.removeprefix(f"{package}.").split(".")
    file = _file_with(group, option, names)
    return f"conf/{file}" if file else "command line"


def _group_of(key: str, choices: dict[str, str]) -> tuple[str, str, str]:
    """Package, group and option that a key belongs to; the innermost package wins."""
    packages = {}
    for choice, option in choices.items():
        group, _, package = choice.partition("@")
        packages[package or group] = (group, option)
    fitting = [package for package in packages if key.startswith(f"{package}.")]
    package = max(fitting, key=len, default=key.partition(".")[0])
    group, option = packages.get(package, (package, ""))
    return package, group, option


def _file_with(group: str, option: str, names: list[str]) -> str | None:
    """Which file of a group holds a key: the option's own, or one that its defaults build on."""
    path = Path(str(resources.files("deepinfer.conf") / group / f"{option}.yaml"))
    if not path.is_file():
        return None
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = object()
    if reduce(lambda at, name: at.get(name, missing) if isinstance(at, dict) else missing, names, data) is not missing:
        return f"{group}/{option}.yaml"
    bases = [base for base in data.get("defaults", ()) if isinstance(base, str) and base != "_self_"]
    return next((file for base in bases if (file := _file_with(group, base, names))), None)
