"""Steps that several ranks run together: one of them gives up a step alone only where the others do not wait in its midst."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deepinfer.engine.device import StepOutOfMemory


class SharedStepLost(RuntimeError):
    """A step was lost at this rank, and with it all ranks that take part in it."""


class OwnStepLost(StepOutOfMemory):
    """A step's rows were lost at this rank alone: what the other ranks needed of it in that step was done."""


@contextmanager
def whole_steps() -> Iterator[None]:
    """Raises SharedStepLost where memory does not suffice, which an engine of one rank would answer with smaller steps. It
    does so here, too, where no other rank lost anything by it: OwnStepLost passes."""
    try:
        yield
    except OwnStepLost:
        raise
    except StepOutOfMemory as error:
        raise SharedStepLost(
            f"{error}: a step that several ranks run together was lost, which this version cannot run again in smaller ones; "
            "smaller steps from the start need less (scheduler.max_num_batched_tokens), and so does a smaller cache "
            "(cache.num_blocks)"
        ) from error
