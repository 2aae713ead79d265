"""Steps that several ranks run together: one of them cannot give up a step alone, for the others wait in its midst."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from deepinfer.engine.device import StepOutOfMemory


class SharedStepLost(RuntimeError):
    """A step was lost at this rank, and with it all ranks that take part in it."""


@contextmanager
def whole_steps() -> Iterator[None]:
    """Raises SharedStepLost where memory does not suffice, which an engine of one rank would answer with smaller steps."""
    try:
        yield
    except StepOutOfMemory as error:
        raise SharedStepLost(
            f"{error}: a step that several ranks run together was lost, which this version cannot run again in smaller ones; "
            "smaller steps from the start need less (scheduler.max_num_batched_tokens), and so does a smaller cache "
            "(cache.num_blocks)"
        ) from error
