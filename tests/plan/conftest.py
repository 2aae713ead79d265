"""Faked machines, and plans of a few overrides.

Hydra takes a tenth of a second for a composition and there are hundreds of them here, so the option files are merged by
hand; a test holds the outcome against Hydra's.
"""

import copy
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepinfer.config.compose import load_with_choices
from deepinfer.config.convert import convert
from deepinfer.config.env import Foreign
from deepinfer.config.facts import probe
from deepinfer.config.specs import Spec
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

CORE = {
    "torch": "2.13.0",
    "numpy": "2.4.0",
    "msgspec": "0.23.0",
    "hydra-core": "1.3.8",
    "omegaconf": "2.3.1",
    "safetensors": "0.8.0",
    "numba": "0.61.2",
}


class FakeMachine:
    """A machine made of dictionaries: files, commands (by their words) and distributions."""

    def __init__(
        self,
        *,
        system: str = "linux",
        architecture: str = "x86_64",
        python: str = "3.12.4",
        cores: int = 8,
        memory_gib: int = 16,
        files: dict[str, str] | None = None,
        commands: dict[str, str] | None = None,
        versions: dict[str, str] | None = None,
        foreign: Foreign | None = None,
    ) -> None:
        kib = memory_gib * 2**20
        meminfo = f"MemTotal:       {kib} kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\n"
        self.system, self.architecture, self.python, self.cores = system, architecture, python, cores
        self.files = {"/proc/meminfo": meminfo} | (files or {})
        self.commands = commands or {}
        self.versions = CORE if versions is None else versions
        self.foreign = foreign or Foreign()

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def find(self, pattern: str) -> list[str]:
        head = pattern.partition("[")[0].partition("*")[0]
        return sorted(path for path in self.files if path.startswith(head))

    def which(self, command: str) -> str | None:
        return f"/usr/bin/{command}" if any(words.split()[0] == command for words in self.commands) else None

    def run(self, *words: str) -> str | None:
        line = " ".join([Path(words[0]).name, *words[1:]])
        return next((text for command, text in self.commands.items() if line.startswith(command)), None)

    def version(self, distribution: str) -> str | None:
        return self.versions.get(distribution)


CONF = Path(str(resources.files("deepinfer.conf")))


@cache
def option(group: str, name: str) -> dict[str, Any]:
    """One option file with what its defaults list builds on."""
    data = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    merged: dict[str, Any] = {}
    for base in data.pop("defaults", ["_self_"]):
        if base == "_self_":
            put_all(merged, data)
        elif isinstance(base, str):
            put_all(merged, option(group, base))
        else:  # {/group@package: option}
            ((target, chosen),) = base.items()
            other, _, package = target.lstrip("/").partition("@")
            put(merged, package.split("."), option(other, chosen))
    return merged


def put(data: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
    data[path[-1]] = copy.deepcopy(value)


def put_all(data: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            put_all(data[key], value)
        else:
            data[key] = copy.deepcopy(value)


@cache
def composed(*overrides: str) -> tuple[Spec, dict[str, str]]:
    """The Spec of some overrides and the options taken. A site's file reaches into all groups: Hydra's own work."""
    if any(override.startswith("cluster=") and override != "cluster=none" for override in overrides):
        return load_with_choices(*overrides)
    lines = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    choices = {group: name for line in lines if isinstance(line, dict) for group, name in line.items()}
    choices = {group: name for group, name in choices.items() if group in Spec.__struct_fields__}
    values = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key in choices or "@" in key:
            choices[key] = value
        else:
            values.append((key.split("."), value if key == "model.path" else yaml.safe_load(value)))
    data: dict[str, Any] = {}
    for key, name in choices.items():
        group, _, package = key.partition("@")
        put(data, (package or group).split("."), option(group, name))
    for path, value in values:
        put(data, path, value)
    return convert(data), choices


@pytest.fixture
def machine() -> type[FakeMachine]:
    return FakeMachine


@pytest.fixture
def laptop() -> FakeMachine:
    """Eight cores, 16 GiB, no accelerator."""
    return FakeMachine()


@pytest.fixture
def plan_of(laptop: FakeMachine) -> Callable[..., Plan]:
    """The plan of some overrides on a laptop, or on `on`."""

    def make(*overrides: str, on: FakeMachine | None = None) -> Plan:
        spec, choices = composed(*overrides)
        return resolve(spec, probe(spec, on or laptop), choices)

    return make


@pytest.fixture
def spec_of() -> Callable[..., Spec]:
    return lambda *overrides: composed(*overrides)[0]
