"""Requests under a grammar, from the compiler to the masks of their rows. Without such requests it costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deepinfer.engine.events import TokenEvent
from deepinfer.interfaces import Request, SamplingParams
from deepinfer.sampling.params import ParamsError

if TYPE_CHECKING:
    from deepinfer.sampling.grammar.desk import GrammarDesk

WAIT_S = 0.05  # at most, when there is nothing to do but wait for a compiler


@dataclass(slots=True)
class Held:
    """A request whose grammar is being compiled."""

    request: Request
    length_end: int
    stop_ids: list[int]


class GrammarLine:
    """`desk` None: no request may bring a grammar, and `no_grammar` says why."""

    def __init__(self, desk: GrammarDesk | None, no_grammar: str) -> None:
        self._desk = desk
        self._no_grammar = no_grammar
        self.wait_s = WAIT_S
        self._held: dict[int, Held] = {}
        self._attached: set[int] = set()  # slots

    def __len__(self) -> int:
        """Requests that wait for their grammar."""
        return len(self._held)

    def __bool__(self) -> bool:
        """Whether some running sequence has a grammar."""
        return bool(self._attached)

    def prepare(self, params: SamplingParams) -> None:
        """Raises ParamsError for a grammar that can be seen to be wrong without compiling it."""
        if params.grammar is None:
            return
        if self._desk is None:
            raise ParamsError([self._no_grammar])
        self._desk.prepare(params)

    def hold(self, request: Request, length_end: int, stop_ids: list[int]) -> bool:
        """Start compiling, and keep the request until that is through. False where it brings no grammar."""
        if request.params.grammar is None or self._desk is None:
            return False
        self._desk.start(request.request_id, request.params)
        self._held[request.request_id] = Held(request, length_end, stop_ids)
        return True

    def holds(self, request_id: int) -> bool:
        return request_id in self._held

    def request_ids(self) -> list[int]:
        return list(self._held)

    def ready(self) -> list[tuple[Held, str | None]]:
        """Requests whose compilation has ended since, each with what went wrong."""
        if not self._held or self._desk is None:
            return []
        done = self._desk.ready()
        return [(self._held.pop(request_id), error) for request_id, error in done if request_id in self._held]

    def wait(self) -> None:
        """Until some compilation ends, but not for long."""
        assert self._desk is not None
        self._desk.wait(self.wait_s)

    def drop(self, request_id: int) -> bool:
        """The request has ended, wherever it was. False where it was not held."""
        if self._desk is not None:
            self._desk.cancel(request_id)
        return self._held.pop(request_id, None) is not None

    def attach(self, slot: int, request: Request) -> None:
        if request.params.grammar is not None and self._desk is not None:
            self._desk.attach(slot, request)
            self._attached.add(slot)

    def detach(self, slot: int) -> None:
        if slot in self._attached and self._desk is not None:
            self._desk.detach(slot)
            self._attached.discard(slot)

    def masks(self, slots: np.ndarray, alive: np.ndarray, drafts_NK: np.ndarray) -> dict[int, np.ndarray]:
        """Index in `slots` → packed masks of its rows, for living sequences under a grammar."""
        desk = self._desk
        assert desk is not None
        places = [r for r, slot in enumerate(slots.tolist()) if alive[r] and desk.has(slot)]
        under = slots[places]
        return dict(zip(places, desk.masks_of(under.tolist(), drafts_NK[under])))

    def advance(self, slots: np.ndarray, events: list[TokenEvent]) -> dict[int, str]:
        """Tell the matchers what was committed. Index → why its grammar cannot go on.

        Such an answer ends with the token after which it could not, whatever drafts were accepted behind that.
        """
        desk = self._desk
        assert desk is not None
        under = {slot: index for index, slot in enumerate(slots.tolist()) if desk.has(slot)}
        errors = {}
        for slot, (number, error) in desk.advance_all({slot: events[i].token_ids for slot, i in under.items()}).items():
            errors[under[slot]], event = error, events[under[slot]]
            event.token_ids = event.token_ids[: number + 1]
            event.logprobs = event.logprobs[: number + 1] if event.logprobs else None
        return errors

    def close(self) -> None:
        if self._desk is not None:
            self._desk.close()
