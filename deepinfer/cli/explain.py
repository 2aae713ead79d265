"""`plan explain=KEY`: where a value was written, and if it was "auto", how it was settled."""

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


def explain(key: str, spec: Spec, invocation: Invocation, plan: Plan) -> str:
    """A few lines on one dotted key, or on a group. Raises Refused for a key that this configuration has not."""
    values = _flat(msgspec.to_builtins(spec))
    decision = next((decision for decision in plan.decisions if decision.key == key), None)
    if key not in values and key not in Spec.__struct_fields__:
        close = nearest(key, [*values, *Spec.__struct_fields__])
        fix = f"plan explain={close}" if close else ""
        raise Refused([Problem(asked=f"explain={key}", found="no such key in this configuration", fix=fix)])
    asked = invocation.choices.get(key) if key in Spec.__struct_fields__ else show(values[key])
    lines = [f"{key} = {decision.value if decision else asked}"]
    lines.append(_line("asked", f"{asked} ({_origin(key, invocation)})"))
    return "\n".join([*lines, *(_decided(decision) if decision else ())])


def _decided(decision: Decision) -> list[str]:
    lines = [_line("because", decision.rule)]
    if decision.runner_up:
        cost = f": {decision.estimate}" if decision.estimate else ""
        lines.append(_line("second", f"{decision.runner_up}{cost}"))
    return lines


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted key → leaf of nested mappings."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{path}.{name}".lstrip(".")).items()
    }


def _origin(key: str, invocation: Invocation) -> str:
    """The override, or the file, that says so. Of several overrides the last counts, as in Hydra."""
    for override in reversed(invocation.overrides):
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
