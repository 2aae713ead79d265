"""What a fused operation was given, looked at before it computes: kinds of arguments, shapes of tensors, one device.

Names say how many dimensions a tensor has: one for each letter behind the underscore (`x_TD`; a 1 belongs to the letter before
it). Equal letters are equal sizes and a digit is its size, but in stores of blocks, whose letters are their own. Numbers of
rows, experts, tokens and places are whole. Other types of numbers, and strides, are each operation's own to check.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

_DIMENSIONS = re.compile(r"_((?:[A-Z]1?|\d)+)$")
_BLOCKS = ("ABR", "ASX")  # stores and tails
_HOST_TABLES = ("codes_AK", "powers_AG")  # may lie in pinned memory, beside row numbers on a device
_WHOLE = re.compile(
    r"(rows|newest|partner|tables|sequence|visible|blocks|picks|starts|used|places|token|draft|start|previous|seed|position)_"
    r"|\w+_rows_"
)
_NUMBERS: dict[Any, tuple[type, ...]] = {int: (Integral,), float: (Real,)}
Result = TypeVar("Result")


class _Parameter(NamedTuple):
    name: str
    kinds: tuple[type, ...]  # what it may be; anything where empty
    letters: tuple[str, ...]  # of its dimensions; none where the name tells none
    sized: bool  # whether its letters are those of the other tensors
    whole: bool  # whether it holds numbers of rows, experts, …


def checked(asking: str, operation: Callable[..., Result]) -> Callable[..., Result]:
    """`operation`, which says what is wrong with its arguments by AssertionError before it computes anything."""
    parameters = [_parameter(name, hint) for name, hint in _hints(operation).items()]
    by_name = {parameter.name: parameter for parameter in parameters}

    @wraps(operation)
    def ask(*args: Any, **kwargs: Any) -> Result:
        given = list(zip(parameters, args))
        if kwargs:
            given += [(by_name[name], value) for name, value in kwargs.items() if name in by_name]
        if not _are_fine(given):
            tensors = [(parameter, value) for parameter, value in given if isinstance(value, Tensor)]
            fault = _wrong_kind(given) or _wrong_shape(tensors) or _wrong_device(tensors)
            assert not fault, f"{asking} was given {fault}"
        return operation(*args, **kwargs)

    return ask


def _are_fine(given: Iterable[tuple[_Parameter, Any]]) -> bool:
    """Whether nothing below finds a fault: every call pays for this loop, so it is short. False may be a false alarm."""
    sizes: dict[str, int] = {"1": 1, "2": 2}
    device = None
    for (_, kinds, letters, sized, whole), value in given:
        if kinds and not isinstance(value, kinds):
            return False
        if isinstance(value, Tensor):
            shape, place = value.shape, value.device
            if (place != device and device is not None) or (letters and len(shape) != len(letters)):
                return False
            if whole and value.dtype not in (torch.int32, torch.int64):
                return False
            device = place
            if sized:
                for letter, size in zip(letters, shape):
                    if sizes.setdefault(letter, size) != size:
                        return False
    return True


def _hints(operation: Callable[..., Any]) -> dict[str, Any]:
    found = get_type_hints(operation.func if isinstance(operation, partial) else operation)
    return {name: found.get(name) for name in inspect.signature(operation).parameters}


def _parameter(name: str, hint: Any) -> _Parameter:
    """Kinds are the classes that the annotation allows, any where it does not say."""
    named = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    plain = object not in named and all(isinstance(one, type) for one in named)
    kinds = tuple(kind for one in named for kind in _NUMBERS.get(one, (one,))) if plain else ()
    letters = found[1] if (found := _DIMENSIONS.search(name)) else ""
    return _Parameter(name, kinds, tuple(re.findall(r".1?", letters)), letters not in _BLOCKS, bool(_WHOLE.match(name)))


def _wrong_kind(given: Iterable[tuple[_Parameter, Any]]) -> str:
    for (name, kinds, *_), value in given:
        if kinds and not isinstance(value, kinds):
            return f"{name} as {type(value).__name__}; it is read as {' or '.join(map(_named, kinds))}: give that"
    return ""


def _wrong_shape(tensors: Iterable[tuple[_Parameter, Tensor]]) -> str:
    sizes: dict[str, tuple[str, int]] = {}  # letter → who had it first, and how large
    for (name, _, letters, sized, whole), value in tensors:
        if whole and value.dtype not in (torch.int32, torch.int64):
            return f"{name} as {value.dtype}; it holds whole numbers: give int32, or int64 where the operation says so"
        if letters and value.dim() != len(letters):
            return (
                f"{name} with the shape {tuple(value.shape)}; its dimensions are [{', '.join(letters)}]: give a tensor of "
                f"{len(letters)}"
            )
        for letter, size in zip(letters, value.shape) if sized else ():
            whose, wanted = sizes.setdefault(letter, ("the layout", int(letter)) if letter.isdigit() else (name, size))
            if size != wanted:
                return (
                    f"{name} [{', '.join(letters)}] with the shape {tuple(value.shape)}; {letter} is {wanted} by {whose}: give "
                    "tensors of one call"
                )
    return ""


def _wrong_device(tensors: Iterable[tuple[_Parameter, Tensor]]) -> str:
    places = [(parameter.name, value.device) for parameter, value in tensors if parameter.name not in _HOST_TABLES]
    for name, device in places[1:]:
        if device != places[0][1]:
            return f"{places[0][0]} on {places[0][1]} and {name} on {device}; one device computes it: move one of them by .to()"
    return ""


def _named(kind: type) -> str:
    return {NoneType: "None", Integral: "a whole number", Real: "a number"}.get(kind, kind.__name__)
