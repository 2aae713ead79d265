"""The choice of tokens and drafts behind a device's forward pass, on one of two lanes; a plan takes one of them for good.

The device lane launches everything and looks at nothing; the host hears what came of it when it asks. It serves steps without
drafts and the checkpoint's draft module, under coupled verification and rejection sampling. The host lane waits for tokens: it
serves drafters that propose from them on the host. Their drafts are judged on the device too, except under rejection sampling
those of somebody's own drafter, which may have logits: a verifier judges them in the host's memory, as for a CPU.

R live sequences of a step · S of them that drafts are made for · T rows of logits · V vocabulary · K drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.device_clock import DeviceClock, Mark
from deepinfer.engine.device_copies import index_of, keep_on_device
from deepinfer.engine.device_memory import if_memory_suffices
from deepinfer.engine.drafting import DraftGrammar, draft
from deepinfer.engine.live_rows import drafts_of_all, expand
from deepinfer.interfaces import Drafter, Drafts, StepOutput, Verified, Verifier, VerifyRows
from deepinfer.model.fused.glue import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from deepinfer.engine.device_forward import Pass
    from deepinfer.engine.sampling_graphs import SamplingGraphs
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.sampling.device_rows import DeviceSampler, Launched
    from deepinfer.speculation.draft_rounds import DraftsOnTheWay
    from deepinfer.speculation.dspark_device import DeviceDSpark


@dataclass(slots=True)
class Asked:
    """What a step wants of its live sequences. `alive` bool of all that were planned, None: all; `num_checked` of all;
    `shared`: the most sequences, padded, that any rank drafts for, where ranks share experts."""

    rows: VerifyRows
    alive: np.ndarray | None
    num_checked: np.ndarray
    draft: bool
    shared: int = 0


@dataclass(slots=True)
class Launch:
    """A sampled step on its way: where the device has its logits, its tokens and its drafts. One graph of logits and tokens
    counts as tokens."""

    asked: Asked
    chosen: Mark
    sampled: Mark
    drafted: Mark
    results: Launched | None = None  # of the device's sampler
    drafts: DraftsOnTheWay | None = None
    output: StepOutput | None = None  # known already


class SamplingLane(Protocol):
    """`launch` begins, in the order of calls, from `picked` rows of hidden states: int64 [T] of `passed.hidden_TD`. `finish`,
    once the device is through with it, brings the host's state up to date and says what came of it.
    """

    waits: bool  # whether `launch` waits for the device
    clock: DeviceClock
    grammar: DraftGrammar | None

    def padded(self, num_sequences: int) -> int:
        """For how many sequences a round of drafts for so many is made; 0 where other ranks need not know."""

    def make_ready(self, passed: Pass, asked: Asked, picked: np.ndarray) -> None:
        """Whatever `launch` needs once for steps of this size, such as a graph; it may take a while, and wait."""

    def launch(self, passed: Pass, picked: np.ndarray, asked: Asked) -> Launch: ...

    def finish(self, launch: Launch) -> StepOutput: ...

    def close(self) -> None:
        """Give back what graphs hold."""


class DeviceLane:
    """`drafter` None: nothing is drafted.

    Drafts are made for all live sequences, also for those whose next row will turn out to have failed: the host's state keeps
    what the device's keeps, and the engine hears of none.
    """

    waits = False

    def __init__(
        self,
        sampler: DeviceSampler,
        logits: Callable[[Tensor], Tensor],
        state: DecodeState,
        sequences: DeviceSequences,
        device: torch.device,
        *,
        drafter: DeviceDSpark | None = None,
        graphs: SamplingGraphs | None = None,
    ) -> None:
        self.sampler, self.logits, self.state, self.sequences, self.device = sampler, logits, state, sequences, device
        self.clock = DeviceClock(device)
        self.drafter, self.graphs = drafter, graphs
        self.grammar: DraftGrammar | None = None  # which drafts on the device do not look at

    def padded(self, num_sequences: int) -> int:
        return 0 if self.drafter is None else self.drafter.padded(num_sequences, self.sequences)

    def make_ready(self, passed: Pass, asked: Asked, picked: np.ndarray) -> None:
        if self._in_graph(passed, asked):
            assert self.graphs is not None
            self.graphs.make_ready(passed.hidden_TD, picked, asked.rows)
        if asked.draft and self.drafter is not None:
            asked.draft = self._drafts_fit(self.drafter, len(asked.rows.slots), asked.shared)

    def _drafts_fit(self, drafter: DeviceDSpark, num_sequences: int, shared: int) -> bool:
        """Whether there is memory for a round; a step does without drafts where there is none."""

        def capture() -> bool:
            drafter.capture(num_sequences, self.sequences, shared)
            return True

        return bool(if_memory_suffices(capture, self.device))

    def _in_graph(self, passed: Pass, asked: Asked) -> bool:
        """A graph reads hidden states where the decode lane leaves them."""
        return self.graphs is not None and passed.resolved is None and self.graphs.takes(asked.rows)

    def launch(self, passed: Pass, picked: np.ndarray, asked: Asked) -> Launch:
        chosen = self.clock.mark()
        if self._in_graph(passed, asked):
            assert self.graphs is not None
            results = self.graphs.launch(passed.hidden_TD, picked, asked.rows)
        else:
            logits_TV = self.logits(passed.hidden_TD[index_of(picked, self.device)])
            chosen = self.clock.mark()
            results = self.sampler.launch(logits_TV, asked.rows)
            self.sequences.append(results.slots_S, results.token_T, results.starts_X, results.counts_S)
        sampled, drafts = self.clock.mark(), None
        if asked.draft and self.drafter is not None:
            drafts = self._draft(self.drafter, asked.rows.slots, asked.shared)
        return Launch(asked, chosen, sampled, self.clock.mark(), results, drafts)

    def _draft(self, drafter: DeviceDSpark, slots: np.ndarray, shared: int) -> DraftsOnTheWay | None:
        if shared:  # other ranks wait in the midst of a round
            return drafter.launch(slots, self.sequences, shared)
        drafts = if_memory_suffices(lambda: drafter.launch(slots, self.sequences), self.device)
        if drafts is None:
            self.sequences.forget_drafts(slots)
        return drafts

    def finish(self, launch: Launch) -> StepOutput:
        assert launch.results is not None
        asked, rows = launch.asked, launch.asked.rows
        verified = self.sampler.finish(launch.results)
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        output = expand(verified, asked.alive, asked.num_checked)
        if launch.drafts is not None:
            made = launch.drafts.wait()
            self.state.keep_drafts(rows.slots, made)
            going = self.state.goes_on(rows.slots, verified)
            told = Drafts(made.token_ids[going], made.confidence[going])
            output.drafts = drafts_of_all(told, going, asked.alive)
        return output

    def close(self) -> None:
        for part in (self.graphs, self.drafter):
            if part is not None:
                part.close()


class HostLane:
    """Waits for what its verifier says, and leaves that on the device."""

    waits = True

    def __init__(
        self,
        verifier: Verifier,
        logits: Callable[[Tensor], Tensor],
        state: DecodeState,
        sequences: DeviceSequences,
        device: torch.device,
        *,
        drafter: Drafter,
        grammar: DraftGrammar | None = None,
    ) -> None:
        self.verifier, self.logits, self.state, self.sequences, self.device = verifier, logits, state, sequences, device
        self.clock = DeviceClock(device)
        self.drafter: Drafter = drafter
        self.grammar: DraftGrammar | None = grammar

    def padded(self, num_sequences: int) -> int:
        return 0

    def make_ready(self, passed: Pass, asked: Asked, picked: np.ndarray) -> None:
        """It does not launch what it could not wait for."""

    def launch(self, passed: Pass, picked: np.ndarray, asked: Asked) -> Launch:
        rows = asked.rows
        logits_TV = self.logits(passed.hidden_TD[index_of(picked, self.device)])
        chosen = self.clock.mark()
        verified = self.verifier.verify(logits_TV, rows)
        self.state.append(rows.slots, verified.token_ids, verified.counts)
        starts = np.cumsum(verified.counts) - verified.counts
        if len(verified.token_ids):
            arrays = {"slots": rows.slots, "tokens": verified.token_ids, "starts": starts, "counts": verified.counts}
            self.sequences.append(*to_device(arrays, self.device).values())
        output = expand(verified, asked.alive, asked.num_checked)
        sampled = self.clock.mark()
        if asked.draft:
            going = self.state.goes_on(rows.slots, verified)
            made = if_memory_suffices(lambda: self._draft(rows.slots, verified, going), self.device)
            if made is None:
                self.state.forget_drafts(rows.slots)
                self.sequences.forget_drafts(rows.slots)
            else:
                output.drafts = drafts_of_all(made, going, asked.alive)
        return Launch(asked, chosen, sampled, self.clock.mark(), output=output)

    def _draft(self, slots: np.ndarray, verified: Verified, going: np.ndarray) -> Drafts:
        made = draft(self.drafter, self.verifier, self.state, self.grammar, slots, verified, going)
        if going.any():
            keep_on_device(self.sequences, slots[going], made)
        return made

    def finish(self, launch: Launch) -> StepOutput:
        assert launch.output is not None
        return launch.output

    def close(self) -> None:
        """It has no graphs."""


def nothing_sampled(asked: Asked, depth: int, at: Mark) -> Launch:
    """A step whose last live sequence has ended meanwhile, or of whose prompts none came to an end."""
    none = np.zeros(0, dtype=np.int64)
    output = expand(Verified(none, none, none.astype(bool)), asked.alive, asked.num_checked)
    if asked.draft:
        output.drafts = drafts_of_all(Drafts.none(depth), none.astype(bool), asked.alive)
    return Launch(asked, at, at, at, output=output)
