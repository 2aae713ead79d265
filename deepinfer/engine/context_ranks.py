"""Ranks that share prompts: one leads, with the engine; the others repeat each call of its executor on executors of their own.

Sampling is thereby redundant and gives the same tokens everywhere, which is checked at every step. Calls travel as bytes, in
order: those since the last step with the next one's plan, those since then with what is known when its tokens are chosen.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from deepinfer.engine import context_calls as calls
from deepinfer.engine.serving_executor import AroundExecutor
from deepinfer.engine.shared_steps import whole_steps
from deepinfer.parallel.meeting import NO_ROOM, Room
from deepinfer.parallel.peers import PeerLost

if TYPE_CHECKING:
    from deepinfer.engine.drafting import DraftGrammar
    from deepinfer.engine.serving_executor import ServingExecutor
    from deepinfer.interfaces import Request, SampleInput, StepOutput, StepPlan
    from deepinfer.parallel.peers import Peers

LEADER = 0
FRAME_BYTES = 8192  # of the first broadcast of a message: most need no second


class RanksDiffer(RuntimeError):
    """Two ranks that compute the same came to different results."""


class ContextLeader(AroundExecutor):
    """`inner` with followers, who are the other ranks of `peers`: a group that exchanges host memory. A step is waited for when
    it is sampled, to compare what came of it."""

    def __init__(self, inner: ServingExecutor, peers: Peers) -> None:
        self.inner, self._talk = inner, Talk(peers)
        self._grammar = SharedGrammar(self._talk, inner.grammar)
        self.grammar: DraftGrammar | None = self._grammar
        inner.grammar = self._grammar
        self._waiting: list[calls.Call] = []
        self._agreement = Agreement(peers)
        self._output: StepOutput | None = None

    def keep_sizes(self, rows: np.ndarray, seconds: np.ndarray) -> None:
        if self.inner.row_sizes:  # without any nobody keeps some
            self._waiting.append(calls.KeepSizes(rows, seconds))
        self.inner.keep_sizes(rows, seconds)

    def admit(self, slot: int, request: Request, length_end: int) -> None:
        call = calls.Admit.of(slot, request, length_end)
        self._waiting.append(call)
        self._grammar.admit(call)
        self.inner.admit(slot, request, length_end)

    def release(self, slot: int) -> None:
        self._waiting.append(calls.Release(slot))
        self.inner.release(slot)

    def poison(self, blocks: np.ndarray, slot: int) -> None:
        self._waiting.append(calls.Poison(blocks, slot))
        self.inner.poison(blocks, slot)

    def plant_drafts(self, slots: np.ndarray, number: int) -> None:
        self._waiting.append(calls.PlantDrafts(slots, number))
        self.inner.plant_drafts(slots, number)

    def submit(self, plan: StepPlan) -> None:
        self._tell(calls.Submit(plan))
        with whole_steps():
            self.inner.submit(plan)

    def run_forward(self, plan: StepPlan) -> None:
        self._tell(calls.RunForward(plan))
        with whole_steps():
            self.inner.run_forward(plan)

    def agree(self, room: Room) -> None:
        if room != NO_ROOM:
            self._waiting.append(calls.Agree(*room))
        self.inner.agree(room)

    def serve_forward(self) -> None:
        self._tell(calls.ServeForward())
        self.inner.serve_forward()

    def serve_draft(self) -> None:
        self._tell(calls.ServeDraft())
        self.inner.serve_draft()

    def sample(self, sample: SampleInput) -> None:
        """Raises RanksDiffer, here and at all followers."""
        assert self._output is None, "the step before this one was not collected"
        self._tell(calls.Sample(sample))
        with whole_steps():
            self.inner.sample(sample)
            self._output = self.inner.collect()
        self._agreement.check(self._output)

    def collect(self) -> StepOutput:
        output, self._output = self._output, None
        assert output is not None, "there is no sampled step to collect"
        return output

    def after_step(self, asked: int) -> None:
        """Have the followers do what is done between two steps; the caller does it here."""
        self._tell(calls.AfterStep(asked))

    def close(self) -> None:
        """Followers close too. One that is lost already needs no telling."""
        with suppress(PeerLost):
            self._tell(calls.Close())
        self.inner.close()

    def _tell(self, call: calls.Call) -> None:
        message, self._waiting = [*self._waiting, call], []
        self._talk.say(message)


def follow(executor: ServingExecutor, peers: Peers, after_step: Callable[[int], None] | None = None) -> None:
    """Do on `executor` what the leader does on its own, until it closes. Raises PeerLost, and RanksDiffer."""
    talk, agreement = Talk(peers), Agreement(peers)
    executor.grammar = grammar = SharedGrammar(talk, None)
    while True:
        for call in talk.hear(list[calls.AnyCall]):
            if isinstance(call, calls.AfterStep):
                assert after_step is not None, "the leader does something between steps that this rank does not know of"
                after_step(call.asked)
                continue
            if isinstance(call, calls.Admit):
                grammar.admit(call)
            call.run(executor)
            if isinstance(call, calls.Sample):
                agreement.check(executor.collect())
            if isinstance(call, calls.Close):
                return


class Talk:
    """Messages from the leader to all others."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._encoder = peers, msgspec.msgpack.Encoder(enc_hook=calls.plain)
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    @property
    def leads(self) -> bool:
        return self._peers.rank == LEADER

    def say(self, message: Any) -> None:
        data = self._encoder.encode(message)
        data = len(data).to_bytes(8, "little") + data
        frame = torch.zeros(max(FRAME_BYTES, len(data)), dtype=torch.uint8)
        frame[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._peers.broadcast(frame[:FRAME_BYTES], LEADER)
        if len(data) > FRAME_BYTES:
            self._peers.broadcast(frame[FRAME_BYTES:], LEADER)

    def hear(self, kind: Any) -> Any:
        """The leader's next message, of the type that it is known to have."""
        frame = self._peers.broadcast(torch.zeros(FRAME_BYTES, dtype=torch.uint8), LEADER)
        end = 8 + int.from_bytes(frame[:8].numpy().tobytes(), "little")
        if end > FRAME_BYTES:
            rest = torch.zeros(end - FRAME_BYTES, dtype=torch.uint8)
            frame = torch.cat((frame, self._peers.broadcast(rest, LEADER)))
        if kind not in self._decoders:
            self._decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=calls.as_array)
        return self._decoders[kind].decode(frame[8:end].numpy().tobytes())


class SharedGrammar:
    """A `DraftGrammar` whose answers the leader's `desk` gives to all, between two drafts and only where a sequence that drafts
    has a grammar. Followers know of grammars nothing else."""

    def __init__(self, talk: Talk, desk: DraftGrammar | None) -> None:
        self._talk, self._desk = talk, desk
        self._slots: set[int] = set()

    def admit(self, call: calls.Admit) -> None:
        """Whether the new sequence has a grammar is known to all."""
        (self._slots.add if call.grammar else self._slots.discard)(call.slot)

    def under(self, slots: Sequence[int]) -> list[int]:
        return [s for s, slot in enumerate(slots) if slot in self._slots] if self._slots else []

    def forced_of(self, slots: Sequence[int], newest: Sequence[list[int]]) -> list[list[int] | None]:
        return self._shared(lambda desk: desk.forced_of(slots, newest), list[list[int] | None])

    def lookahead_of(self, slots: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray | None]:
        return self._shared(lambda desk: desk.lookahead_of(slots, tokens), list[np.ndarray | None])

    def _shared(self, ask: Callable[[DraftGrammar], Any], kind: Any) -> Any:
        if not self._talk.leads:
            return self._talk.hear(kind)
        assert self._desk is not None, "a request with a grammar was admitted where there are none"
        answer = ask(self._desk)
        self._talk.say(answer)
        return answer


class Agreement:
    """Compares results of a step among all ranks."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._step = peers, 0

    def check(self, output: StepOutput) -> None:
        self._step += 1
        said = self._peers.all_gather(torch.tensor([digest(output)])).flatten().tolist()
        others = [rank for rank, one in enumerate(said) if one != said[LEADER]]
        if others:
            raise RanksDiffer(
                f"context ranks {', '.join(map(str, others))} chose other tokens than rank {LEADER} in step {self._step}, "
                "though all of them compute the same: their processors or libraries differ, or memory of one is damaged. "
                "Run them on machines of one kind with the same packages, or type parallel.context=1"
            )


def digest(output: StepOutput) -> int:
    """Of the tokens of a step and of the drafts for the next, confidences included, since they decide what is checked."""
    drafts = [] if output.drafts is None else [output.drafts.token_ids, output.drafts.confidence]
    crc = 0
    for array in (output.token_ids, output.counts, output.failed, *drafts):
        crc = zlib.crc32(np.ascontiguousarray(array).tobytes(), crc)
    return crc
