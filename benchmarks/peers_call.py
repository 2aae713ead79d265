"""What a peer is: a foreign kernel found by import, given our inputs in its own layout, and checked before it is timed."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch
from device_timer import captured
from torch import Tensor

Call = Callable[[], Any]
Calls = list[Call] | str
Compare = Callable[[Any, Any], float]
MESSAGE_CHARACTERS = 300


def relative_error(got: Tensor, expected: Tensor) -> float:
    """‖got − expected‖ / ‖expected‖; NaN where either has one."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm())


class Reading:
    """A call whose answer has padding or another format: `result` reads it for the check, the call itself does not."""

    def __init__(self, call: Call, read: Callable[[Any], Any]) -> None:
        self.call, self.read = call, read

    def __call__(self) -> Any:
        return self.call()

    def result(self) -> Any:
        return self.read(self.call())


@dataclass(frozen=True)
class Peer:
    """One foreign kernel.

    `build(module, *inputs)` turns one copy of an op's inputs into a call that returns the answer, or into a Reading.
    `tolerance`: how far it may be from the twin by `compare`; it says what the peer's formats lose.
    """

    name: str
    module: str
    package: str
    build: Callable[..., Call]
    tolerance: float
    compare: Compare

    def __call__(self, copies: Sequence[tuple[Any, ...]], expected: Any) -> Calls:
        """One call for each copy, or a sentence that says why there is none.

        `expected` is the twin's answer for the first copy.
        """
        module = found(self.module, self.package)
        if isinstance(module, str):
            return module
        who = f"{self.package} {_version(self.package, module)}"
        try:
            calls = [self.build(module, *copy) for copy in copies]
            answer = calls[0].result() if isinstance(calls[0], Reading) else calls[0]()
            torch.cuda.synchronize()
            captured(calls[:1])  # it is timed as a graph: one that cannot be is absent
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything; the run goes on without it
            return f"{who} failed: {type(error).__name__}: {' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"
        distance = self.compare(answer, expected)
        if not distance <= self.tolerance:
            return f"{who} computes something else: {distance:.2%} from the twin, {self.tolerance:.2%} allowed"
        return calls


def peer(
    module: str, *, tolerance: float, package: str = "", compare: Compare = relative_error
) -> Callable[[Callable[..., Call]], Peer]:
    """Makes a Peer of a build function, named like it. `package` is the distribution's name where it is not the module's."""

    def made(build: Callable[..., Call]) -> Peer:
        return Peer(build.__name__, module, package or module.partition(".")[0], build, tolerance, compare)

    return made


def found(module: str, package: str) -> ModuleType | str:
    """The module, or why it cannot be used."""
    if not torch.cuda.is_available():
        return f"{package} was not asked: it needs a GPU"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"{package} is not installed ({error}): bash benchmarks/peer_environment.sh"
    except Exception as error:  # noqa: BLE001 - a package for another torch or CUDA fails in many ways
        return f"{package} does not load: {type(error).__name__}: {' '.join(str(error).split())[:MESSAGE_CHARACTERS]}"


def ask(peers: Sequence[Peer], copies: Sequence[tuple[Any, ...]], expected: Any) -> dict[str, Calls]:
    """Every peer's calls, or its sentence."""
    return {one.name: one(copies, expected) for one in peers}


def _version(package: str, module: ModuleType) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return str(getattr(module, "__version__", "of unknown version"))
