"""The space of a search: what its recipe lets vary, checked before the first trial, and how Optuna draws from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import msgspec

from deepinfer.cli.help import options
from deepinfer.config.coerce import coerce, union_members
from deepinfer.config.convert import show
from deepinfer.config.errors import Problem, Refused, listed, nearest
from deepinfer.config.keys import leaf_keys
from deepinfer.config.specs import Spec

if TYPE_CHECKING:
    from optuna.trial import Trial

    from deepinfer.config.sweeps import Search

Values = dict[str, Any]  # name → option or value


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    step: float | None
    log: bool
    whole: bool  # whether the key takes whole numbers


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """Groups with their options, keys with their values, and keys with ranges of numbers."""

    choices: dict[str, tuple[Any, ...]]
    spans: dict[str, Span]

    @property
    def size(self) -> int | None:
        """How many points there are; None where a range is not counted out by a step."""
        if self.spans:
            return None
        return prod(len(values) for values in self.choices.values())

    def points(self) -> Iterator[Values]:
        """Every point of a space without ranges."""
        for values in product(*self.choices.values()):
            yield dict(zip(self.choices, values))

    def draw(self, trial: Trial) -> Values:
        """One point, as the trial's sampler has it."""
        found = {name: trial.suggest_categorical(name, list(values)) for name, values in self.choices.items()}
        for name, span in self.spans.items():
            if span.whole:
                step = int(span.step or 1)
                found[name] = trial.suggest_int(name, int(span.low), int(span.high), step=step, log=span.log)
            else:
                found[name] = trial.suggest_float(name, span.low, span.high, step=span.step, log=span.log)
        return found


def is_group(name: str) -> bool:
    """Whether a name of the space chooses an option, as in parallel or parallel@deploy.decode.parallel."""
    return name.partition("@")[0] in Spec.__struct_fields__


def overrides_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A point as it is typed."""
    return tuple(f"{name}={show(value)}" for name, value in values.items())


def space_of(search: Search, overrides: Sequence[str], folder_options: Sequence[str] = ()) -> Space:
    """The space of a recipe. Raises Refused with all that is wrong with it, and where overrides fix what it varies.

    `folder_options` are options of the user's own, as "group/option".
    """
    problems = [*_shape_problems(search), *_fixed(search, overrides)]
    for name, values in search.choices.items():
        problems += _choice_problems(name, values, folder_options)
    for name, numbers in (search.ranges | search.log_ranges).items():
        problems += _range_problems(name, numbers, log=name in search.log_ranges)
    if problems:
        raise Refused(problems)
    spans = {name: _span(name, numbers, log=False) for name, numbers in search.ranges.items()}
    spans |= {name: _span(name, numbers, log=True) for name, numbers in search.log_ranges.items()}
    return Space(choices=dict(search.choices), spans=spans)


def _shape_problems(search: Search) -> Iterator[Problem]:
    names = [*search.choices, *search.ranges, *search.log_ranges]
    if not names:
        yield Problem(asked="sweep.choices={}", found="nothing varies", why="a search needs choices or ranges")
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield Problem(asked=f"sweep: {name}", found="it is listed twice", why="one of them would be lost")
    for name in names:
        if name.partition(".")[0] in ("task", "sweep"):
            yield Problem(asked=f"sweep: {name}", found="a search cannot change itself", why="task and sweep are fixed")
    if not search.objectives:
        yield Problem(
            asked="sweep.objectives={}", found="nothing to search for", fix="sweep.objectives={ttft_s: minimize}"
        )


def _fixed(search: Search, overrides: Sequence[str]) -> Iterator[Problem]:
    for text in overrides:
        name = text.partition("=")[0].lstrip("+")
        if name in search.choices or name in search.ranges or name in search.log_ranges:
            yield Problem(asked=text, found=f"the recipe varies {name}", why="one of them would be lost")


def _choice_problems(name: str, values: Sequence[Any], folder_options: Sequence[str]) -> Iterator[Problem]:
    key = f"sweep.choices.{name}"
    if not values:
        yield Problem(asked=f"{key}=[]", found="no value to choose from")
    if len({show(value) for value in values}) < len(values):
        yield Problem(asked=f"{key}=[{', '.join(map(show, values))}]", found="a value is listed twice")
    if any(not isinstance(value, str | int | float | bool | None) for value in values):
        yield Problem(
            asked=key, found="a value that is a list or a mapping", why="options, texts and numbers can be searched"
        )
        return
    if not is_group(name):
        yield from _key_problems(name, values)
        return
    group = name.partition("@")[0]
    known = [*options(group), *(path.partition("/")[2] for path in folder_options if path.startswith(f"{group}/"))]
    for value in values:
        if value not in known:
            close = nearest(str(value), known)
            fix = close or ""
            yield Problem(
                asked=f"{key}: {show(value)}", found=f"no option of {group}", why=f"there are {listed(known)}", fix=fix
            )


def _key_problems(name: str, values: Sequence[Any]) -> Iterator[Problem]:
    kind = leaf_keys().get(name)
    if kind is None:
        close = nearest(name, leaf_keys())
        yield Problem(asked=f"sweep: {name}", found="no such group or key", fix=close or "")
        return
    for value in values if get_origin(kind) not in (dict, tuple) else ():
        try:
            coerce(value, kind)
        except ValueError as error:
            yield Problem(asked=f"sweep: {name}={show(value)}", found=str(error))


def _range_problems(name: str, numbers: Sequence[float], *, log: bool) -> Iterator[Problem]:
    key = f"sweep.{'log_ranges' if log else 'ranges'}.{name}"
    asked = f"{key}=[{', '.join(f'{number:g}' for number in numbers)}]"
    if len(numbers) not in ((2,) if log else (2, 3)):
        wanted = "low and high" if log else "low, high and perhaps a step"
        yield Problem(asked=asked, found=f"found {len(numbers)} numbers, wanted {wanted}")
        return
    low, high = numbers[:2]
    if low >= high or (log and low <= 0) or (len(numbers) == 3 and numbers[2] <= 0):
        why = "low is below high, steps and what is searched by doublings are above zero"
        yield Problem(asked=asked, found="no such range", why=why)
    elif _takes_numbers(name):
        whole = _span(name, numbers, log=log).whole
        yield from _key_problems(name, [int(number) if whole else number for number in (low, high)])
    else:
        yield Problem(asked=asked, found="it takes no numbers" if name in leaf_keys() else "no such key")


def _bases(name: str) -> list[Any]:
    members = union_members(leaf_keys().get(name))
    return [get_args(member)[0] if get_origin(member) is Annotated else member for member in members]


def _takes_numbers(name: str) -> bool:
    return bool({int, float} & {base for base in _bases(name) if isinstance(base, type)})


def _span(name: str, numbers: Sequence[float], *, log: bool) -> Span:
    step = numbers[2] if len(numbers) == 3 else None
    return Span(low=numbers[0], high=numbers[1], step=step, log=log, whole=float not in _bases(name))
