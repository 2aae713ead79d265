"""What one point of a search is worth: estimated from its plan in this process, or measured by a bench of its own."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deepinfer import __version__
from deepinfer.cli.points_file import Point
from deepinfer.cli.sweep_points import Job
from deepinfer.cli.tune_space import is_group, overrides_of
from deepinfer.config.compose import Composed, compose_data
from deepinfer.config.convert import convert
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import Facts, grounds, probe
from deepinfer.plan.resolve import resolve

if TYPE_CHECKING:
    from deepinfer.cli.tune_space import Values
    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan


class Evaluator(Protocol):
    """Makes a point of values; a refused one has an exit code and a reason."""

    def __call__(self, number: int, identity: str, values: Values) -> Point: ...


class Planner:
    """Plans points in this process. Hydra composes each combination of options once; values are then set on its result,
    as a last override would, which takes a hundredth of the time."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._composed: dict[tuple[str, ...], Composed] = {}
        self._facts: dict[bytes, Facts] = {}

    def __call__(self, number: int, identity: str, values: Values) -> Point:
        started_s = time.perf_counter()
        shared: dict[str, Any] = {
            "number": number,
            "identity": identity,
            "swept": values,
            "overrides": overrides_of(values),
        }
        try:
            plan = self.plan(values)
        except Refused as refused:
            wall_s = round(time.perf_counter() - started_s, 4)
            return Point(**shared, exit_code=refused.exit_code, wall_s=wall_s, refusal=_sentence(refused))
        return Point(
            **shared,
            exit_code=ExitCode.OK,
            wall_s=round(time.perf_counter() - started_s, 4),
            facts={
                "num_ranks": plan.layout.num_ranks,
                "memory_bytes": max(memory.device_bytes for memory in plan.memory),
                "cache_tokens": plan.capacity.tokens,
            },
            figures=plan.cost.headline,
            curve=tuple((each.tokens_per_s_per_user, each.tokens_per_s_per_gpu) for each in plan.cost.tradeoff),
            model=plan.model.name,
            versions={"deepinfer": __version__},
        )

    def plan(self, values: Values) -> Plan:
        """The plan of a point. Raises Refused (PlanErrors too)."""
        groups = overrides_of({name: value for name, value in values.items() if is_group(name)})
        if groups not in self._composed:
            overrides = (*self._invocation.overrides, *groups)
            asked = self._invocation
            self._composed[groups] = compose_data(overrides, texts=asked.texts, config_dir=asked.config_dir)
        composed = self._composed[groups]
        if composed.problems or composed.missing:
            raise Refused([*composed.problems, *composed.missing])
        data = copy.deepcopy(composed.data)
        for name, value in values.items():
            if not is_group(name):
                _set(data, name.split("."), value)
        spec = convert(data)
        return resolve(spec, self._probed(spec), composed.choices)

    def _probed(self, spec: Spec) -> Facts:
        """Facts of the machine, the checkpoint and what `cost` reads, looked up once for specs that share them."""
        key = repr(grounds(spec)).encode()
        if key not in self._facts:
            self._facts[key] = probe(spec)
        return self._facts[key]


class Bencher:
    """Measures points, each by `deepinfer bench` in a process of its own, with a log in the search's folder."""

    def __init__(self, invocation: Invocation, folder: Path) -> None:
        self._folder = folder
        texts = [f"{key}={text}" for key, text in invocation.texts.items()]
        fixed = fixed_overrides(invocation.overrides, with_task_keys=True)
        flags = ["--config-dir", invocation.config_dir] if invocation.config_dir else []
        self._before, self._after = [*flags, "bench", *fixed], [*texts, "format=json"]

    def __call__(self, number: int, identity: str, values: Values) -> Point:
        from deepinfer.cli.sweep_run import run_jobs
        from deepinfer.cli.sweep_told import point_of, tell_failure

        overrides = overrides_of(values)
        arguments = (*self._before, *overrides, *self._after)
        job = Job(identity=identity, swept=values, overrides=overrides, arguments=arguments)
        runs = run_jobs([job], self._folder / "jobs", first_number=number, at_once=1, go_on=lambda: True)
        (ended,) = runs
        point = point_of(ended)
        if point.failed:
            tell_failure(ended, " ".join(overrides), self._folder)
        return point


def fixed_overrides(overrides: Sequence[str], *, with_task_keys: bool = False) -> tuple[str, ...]:
    """What a search was typed with, without the words that make it a search; keys of the task are those of a bench."""

    def stays(key: str) -> bool:
        group = key.partition(".")[0]
        return group not in ("task", "sweep") or (with_task_keys and key.startswith("task."))

    return tuple(text for text in overrides if stays(text.lstrip("+").partition("=")[0]))


def _sentence(refused: Refused) -> str:
    first, more = refused.problems[0], len(refused.problems) - 1
    because = f"; {first.why}" if first.why else ""
    return f"{first.asked}: {first.found}{because}{f' (and {more} more)' if more else ''}"


def _set(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
    data[path[-1]] = value
