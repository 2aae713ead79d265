"""What a leader's executor is asked to do, as bytes: each call as a message that knows how to be carried out elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from deepinfer.interfaces import Request, SampleInput, StepPlan
from deepinfer.parallel.meeting import Room

if TYPE_CHECKING:
    from deepinfer.engine.serving_executor import ServingExecutor


class Call(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One call of an executor, or something that the follower itself does."""

    def run(self, executor: ServingExecutor) -> None:
        """Carry it out."""


class Admit(Call, frozen=True, array_like=True, tag=True):
    """`grammar`: whether the request has one, which itself stays behind."""

    slot: int
    request: Request
    length_end: int
    grammar: bool

    @classmethod
    def of(cls, slot: int, request: Request, length_end: int) -> Admit:
        plain = msgspec.structs.replace(request.params, grammar=None)
        fields = {name: getattr(request, name) for name in Request.__slots__}
        return cls(slot, Request(**{**fields, "params": plain}), length_end, request.params.grammar is not None)

    def run(self, executor: ServingExecutor) -> None:
        executor.prepare(self.request.params)
        executor.admit(self.slot, self.request, self.length_end)


class Release(Call, frozen=True, array_like=True, tag=True):
    slot: int

    def run(self, executor: ServingExecutor) -> None:
        executor.release(self.slot)


class Poison(Call, frozen=True, array_like=True, tag=True):
    blocks: np.ndarray
    slot: int

    def run(self, executor: ServingExecutor) -> None:
        executor.poison(self.blocks, self.slot)


class Submit(Call, frozen=True, array_like=True, tag=True):
    plan: StepPlan

    def run(self, executor: ServingExecutor) -> None:
        executor.submit(self.plan)


class RunForward(Call, frozen=True, array_like=True, tag=True):
    plan: StepPlan

    def run(self, executor: ServingExecutor) -> None:
        executor.run_forward(self.plan)


class PlantDrafts(Call, frozen=True, array_like=True, tag=True):
    slots: np.ndarray
    number: int

    def run(self, executor: ServingExecutor) -> None:
        executor.plant_drafts(self.slots, self.number)


class KeepSizes(Call, frozen=True, array_like=True, tag=True):
    rows: np.ndarray
    seconds: np.ndarray

    def run(self, executor: ServingExecutor) -> None:
        executor.keep_sizes(self.rows, self.seconds)


class Agree(Call, frozen=True, array_like=True, tag=True):
    rows: int
    sequences: int

    def run(self, executor: ServingExecutor) -> None:
        executor.agree(Room(self.rows, self.sequences))


class ServeForward(Call, frozen=True, array_like=True, tag=True):
    def run(self, executor: ServingExecutor) -> None:
        executor.serve_forward()


class ServeDraft(Call, frozen=True, array_like=True, tag=True):
    def run(self, executor: ServingExecutor) -> None:
        executor.serve_draft()


class Sample(Call, frozen=True, array_like=True, tag=True):
    """Whoever carries it out collects the step too, and compares what came of it."""

    sample: SampleInput

    def run(self, executor: ServingExecutor) -> None:
        executor.sample(self.sample)


class AfterStep(Call, frozen=True, array_like=True, tag=True):
    """What the ranks of an expert group do between two steps; see DistributedExecutor."""

    asked: int


class Close(Call, frozen=True, array_like=True, tag=True):
    def run(self, executor: ServingExecutor) -> None:
        executor.close()


AnyCall = (
    Admit
    | Release
    | Poison
    | Submit
    | RunForward
    | PlantDrafts
    | Agree
    | KeepSizes
    | ServeForward
    | ServeDraft
    | Sample
    | AfterStep
    | Close
)


def plain(value: Any) -> Any:
    """Arrays as their dtype, shape and bytes, and NumPy's numbers as Python's."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not travel between ranks")


def as_array(kind: type, value: Any) -> Any:
    """The other way round; the array may be written to."""
    assert kind is np.ndarray, f"{kind} does not travel between ranks"
    dtype, shape, data = value
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()
