"""The engine's counter for structured output: grammars are handed in, become masks, and follow what is written."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from deepinfer.sampling.grammar.backend import Compiled, GrammarBackend, GrammarError, Vocabulary
from deepinfer.sampling.grammar.crew import Crew
from deepinfer.sampling.grammar.problems import grammar_problems, request_problems
from deepinfer.sampling.grammar.session import Session
from deepinfer.sampling.grammar.workshop import Workshop
from deepinfer.sampling.params import ParamsError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deepinfer.interfaces import Request, SamplingParams

MAX_CACHED = 256  # contents that stay compiled
MAX_CACHED_BYTES = 512 * 2**20


class GrammarDesk:
    """Shapes: K drafts · W = ceil(V / 32) words of a mask. Used from the engine's thread, but for
    `under`, `lookahead` and `forced` and their `_of`, which the executor's thread calls between `masks` and the `advance` that
    follows.

    A request is `start`ed, told by `ready` once its grammar is compiled, then `attach`ed to the slot it runs in and
    `detach`ed when it has left for good. Its state is the committed tokens: a preempted request that keeps its slot goes on
    where it was. `cancel` may be called for any request, at any time.
    """

    def __init__(
        self,
        backend: GrammarBackend,
        vocabulary: Vocabulary,
        *,
        compile_timeout_s: float,
        max_cached: int = MAX_CACHED,
        max_cached_bytes: int = MAX_CACHED_BYTES,
        drafting: bool = True,
        threads: int = 1,
    ) -> None:
        """`drafting` False: no drafts are made, and answers keep no matcher for them. `threads` share the answers of a step."""
        self._backend = backend
        self._drafting, self._crew = drafting, Crew(threads)
        self._vocabulary = vocabulary
        self._workshop = Workshop(
            backend, timeout_s=compile_timeout_s, max_cached=max_cached, max_cached_bytes=max_cached_bytes
        )
        self._waiting: dict[int, Session] = {}  # request → its answer, until it is attached
        self._sessions: dict[int, Session] = {}  # slot → its answer

    def prepare(self, params: SamplingParams) -> None:
        """Raise ParamsError with all that can be seen to be wrong without compiling."""
        try:
            problems = request_problems(params, self._vocabulary.vocab_size)
            if not problems and params.grammar is not None:
                problems = grammar_problems(params.grammar, self._backend.name)
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            problems = [
                f"grammar cannot be read ({type(error).__name__}: {error}): write it as docs/structured_output.md has it"
            ]
        if problems:
            raise ParamsError(problems)

    def start(self, request_id: int, params: SamplingParams) -> None:
        """Have the grammar of a prepared request compiled."""
        grammar = params.grammar
        assert grammar is not None, "only requests with a grammar come here"
        free = {"starts_after": None, "trigger_token_ids": (), "bound_token_id": None}  # what no matcher knows of
        key = msgspec.json.encode(msgspec.structs.replace(grammar, **free))

        def session(compiled: Compiled) -> Session:
            return Session(compiled, params, self._vocabulary, drafting=self._drafting)

        self._workshop.order(request_id, key, session)

    def ready(self) -> list[tuple[int, str | None]]:
        """Requests whose compilation has ended since: id, and what went wrong or None."""
        found: list[tuple[int, str | None]] = []
        for request_id, result in self._workshop.finished():
            if isinstance(result, GrammarError):
                found.append((request_id, f"grammar: {result}"))
            else:
                self._waiting[request_id] = result
                found.append((request_id, None))
        return found

    def wait(self, timeout_s: float) -> None:
        """Until `ready` has something to tell, but not longer."""
        self._workshop.wait(timeout_s)

    def cancel(self, request_id: int) -> None:
        """Forget a request that has not been attached; others are not touched."""
        self._workshop.cancel(request_id)
        self._waiting.pop(request_id, None)

    def attach(self, slot: int, request: Request) -> None:
        """A request that `ready` has told of begins its answer in a slot. Attaching it again changes nothing."""
        session = self._waiting.pop(request.request_id, None)
        if session is not None:
            self._sessions[slot] = session
        assert slot in self._sessions, "a grammar is attached once it is ready"

    def detach(self, slot: int) -> None:
        self._sessions.pop(slot, None)

    def has(self, slot: int) -> bool:
        return slot in self._sessions

    def under(self, slots: Sequence[int]) -> list[int]:
        """Which of `slots`, by their places there, have a grammar."""
        return [s for s, slot in enumerate(slots) if slot in self._sessions] if self._sessions else []

    def masks(self, slot: int, drafts: np.ndarray) -> np.ndarray:
        """uint32 [rows, W]: row 0 is for the next token, row i for the one after drafts[:i]; `drafts` int64 [K], -1 unused.

        Rows end before the first draft that is illegal, or that a limit keeps from being checked.
        """
        rows = self._sessions[slot].masks(drafts.tolist())
        return np.stack(rows) if len(rows) > 1 else rows[0][None]

    def advance(self, slot: int, tokens: Sequence[int]) -> str | None:
        """Book committed tokens. A sentence where the answer cannot go on under its grammar; it then has to end."""
        return self._sessions[slot].advance(tokens)

    def masks_of(self, slots: Sequence[int], drafts_SK: np.ndarray) -> list[np.ndarray]:
        """`masks` of many slots; those of drafts are worth more threads than one."""
        work = partial(self._masks_at, slots, drafts_SK)
        everyone = range(len(slots))
        return self._crew.map(work, everyone) if (drafts_SK >= 0).any() else [work(s) for s in everyone]

    def _masks_at(self, slots: Sequence[int], drafts_SK: np.ndarray, s: int) -> np.ndarray:
        return self.masks(slots[s], drafts_SK[s])

    def advance_all(self, tokens_of: Mapping[int, Sequence[int]]) -> dict[int, tuple[int, str]]:
        """`advance` of many slots, each token by token. Slot → the number of the token that its answer ends with, and why."""

        def one(slot: int) -> tuple[int, str] | None:
            tokens = tokens_of[slot]
            for number in range(len(tokens)):
                if error := self.advance(slot, tokens[number : number + 1]):
                    return number, error
            return None

        slots = list(tokens_of)
        return {slot: end for slot, end in zip(slots, self._crew.map(one, slots)) if end is not None}

    def lookahead(self, slot: int, tokens: Sequence[int]) -> np.ndarray | None:
        """uint32 [W] of what may follow the committed and these tokens; None where everything may."""
        session = self._sessions.get(slot)  # the executor's thread may ask for one that has just left
        return None if session is None else session.lookahead(tokens)

    def forced(self, slot: int, tokens: Sequence[int]) -> list[int]:
        """Tokens that must follow the committed and these tokens: proposals, each legal after those before it."""
        session = self._sessions.get(slot)
        return [] if session is None else session.forced(tokens)

    def lookahead_of(self, slots: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray | None]:
        """`lookahead` of many slots."""
        return [self.lookahead(slot, some) for slot, some in zip(slots, tokens)]

    def forced_of(self, slots: Sequence[int], newest: Sequence[list[int]]) -> list[list[int] | None]:
        """`forced` of many slots; None for those without a grammar."""
        return [self.forced(slot, some) if self.has(slot) else None for slot, some in zip(slots, newest)]

    def close(self) -> None:
        """Forget everything; compilations under way end by themselves."""
        self._workshop.close()
        self._crew.close()
        self._waiting.clear()
        self._sessions.clear()
