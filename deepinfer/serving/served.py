"""What a server is given: an engine with everything that is needed to hand it requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.interfaces import SamplingParams
    from deepinfer.sampling.collector import EngineLike
    from deepinfer.serving.jobs import Desk


@dataclass(frozen=True, kw_only=True)
class Served:
    """A built engine, which computes `num_places` answers at once while others wait. `asked` are the sampling fields that the
    plan's maker chose; the chat format leaves them alone."""

    engine: EngineLike
    desk: Desk
    defaults: SamplingParams
    asked: frozenset[str] = frozenset()
    num_places: int = 1
    warm_up_s: float = 0.0
    notices: tuple[str, ...] = ()
