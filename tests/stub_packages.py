"""Modules built from tests/contracts/*.json: every function records its calls and refuses arguments that it does not have.

And what packed scales must look like.
"""

import ast
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

CONTRACTS = Path(__file__).parent / "contracts"
DEFAULTS = {"torch.int64": torch.int64, "torch.float32": torch.float32, "torch.bfloat16": torch.bfloat16}


@dataclass
class Stub:
    """One package: `calls` holds (function, arguments by name) in order; `answers` what a function gives back."""

    module: ModuleType
    version: str
    answers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def arguments(self, function: str) -> dict[str, Any]:
        """Of the only call of a function."""
        (found,) = [arguments for name, arguments in self.calls if name == function]
        return found


def stub_package(contract: Path) -> Stub:
    """A module and its submodules and classes, as the contract lists them."""
    content = json.loads(contract.read_text())
    stub = Stub(ModuleType(content["import"]), content["version"])
    for name, number in content.get("constants", {}).items():
        setattr(stub.module, name, number)
    for dotted, arguments in content["functions"].items():
        path = dotted.split(".")[1:]
        owner: Any = stub.module
        for name in path[:-1]:
            if not hasattr(owner, name):
                made: Any = type(name, (), {}) if name[0].isupper() else ModuleType(name)
                setattr(owner, name, made)
            owner = getattr(owner, name)
        setattr(owner, path[-1], _recorder(stub, ".".join(path), signature(arguments), isinstance(owner, type)))
    return stub


def signature(arguments: list[dict[str, str]]) -> inspect.Signature:
    """As a caller sees it; defaults of the package that are no literals stand for themselves as text."""
    kinds = {"*": inspect.Parameter.VAR_POSITIONAL, "**": inspect.Parameter.VAR_KEYWORD}
    parameters = []
    for argument in arguments:
        name = argument["name"].lstrip("*")
        stars = argument["name"][: len(argument["name"]) - len(name)]
        default = _literal(argument["default"]) if "default" in argument else inspect.Parameter.empty
        usual = inspect.Parameter.KEYWORD_ONLY if "keyword" in argument else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kinds.get(stars, usual), default=default))
    return inspect.Signature(parameters)


def install(stub: Stub, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, stub.module.__name__, stub.module)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return DEFAULTS.get(text, text)


def _recorder(stub: Stub, name: str, known: inspect.Signature, method: bool) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        first = arguments[:1] if method else ()
        bound = known.bind(*arguments[len(first) :], **named)
        stub.calls.append((name, dict(bound.arguments)))
        bound.apply_defaults()
        answer = stub.answers.get(name)
        return None if answer is None else answer(**bound.arguments)

    call.__name__, call.__signature__ = name, known  # type: ignore[attr-defined]
    return call


def is_packed(scales: Tensor, rows: int, columns: int) -> None:
    """Four scales a word, rows adjacent, columns 16-byte aligned: what DeepGEMM's layout check asks for."""
    assert scales.dtype == torch.int32 and scales.shape[-2:] == (rows, -(-columns // 128))
    assert scales.stride(-2) == 1 and scales.stride(-1) % 4 == 0 and scales.stride(-1) >= rows


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """Numbers of FP8 codes with packed scales."""
    powers = torch.exp2(scales.contiguous().view(torch.uint8).float() - 127)[..., : codes.shape[-1] // 32]
    return codes.float() * powers.repeat_interleave(32, -1)
