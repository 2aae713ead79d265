"""What the user of an engine on several ranks may ask of its balancer of experts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from deepinfer.parallel.eplb.balancer import BalancerState


class Experts:
    """The experts of an LLM on several ranks with balancer=eplb. Any thread may ask, between two steps of others' calls.

    Everything raises ValueError where no expert can move.
    """

    def __init__(self, engine: Any, turn: AbstractContextManager[Any]) -> None:
        self._ask: Callable[..., BalancerState] | None = getattr(engine, "ask_experts", None)
        self._turn = turn

    def inspect(self) -> BalancerState:
        """Placement, loads of the newest steps, and experts on their way, after the next step."""
        return self._asked()

    def balance(self, *, at_once: bool = False) -> BalancerState:
        """Make a placement for the loads of the newest steps, and move experts while steps go on; `at_once`: while steps wait.
        A layer of which little would be gained stays as it is (balancer.min_gain)."""
        return self._asked(balance=True, at_once=at_once)

    def save(self, path: str | bytes | Path) -> BalancerState:
        """Write placement and loads to a file at the first rank, from which balancer.placement=PATH begins."""
        if not isinstance(path, str | bytes | os.PathLike) or not os.fspath(path):
            raise ValueError(f"path={path!r} names no file: type llm.experts.save('placement.safetensors')")
        name = os.fsdecode(path)
        if "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
            raise ValueError(f"path={path!r:.80} names no file: it has a zero byte, or bytes that are no text in UTF-8")
        return self._asked(path=os.path.abspath(name))

    def _asked(self, **what: Any) -> BalancerState:
        if self._ask is None:
            raise ValueError("one rank holds all experts here, and none can move: parallel=ep2 balancer=eplb")
        with self._turn:
            return self._ask(**what)
