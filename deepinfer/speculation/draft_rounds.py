"""Rounds of drafting that a device works out alone: from what it knows of its sequences, and back to there.

A round's seeds, temperatures and slots are the host's, in one copy; its drafts come to the host in one. With graphs all of it,
copies included, is one CUDA graph, keyed by the number of sequences: what a round costs does not depend on how many drafts are
checked.

Legend: S sequences · K drafts · N slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import Drafts
from deepinfer.model.fused.decode_sizes import default_sizes, shared_size
from deepinfer.model.fused.dispatch import fits_graph
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.glue import to_host
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.step_graphs import StepGraphs
from deepinfer.speculation.calibration import Calibration
from deepinfer.speculation.proposals import Proposals, Served, propose


@dataclass(frozen=True)
class DraftsOnTheWay:
    """Drafts whose copy to the host was launched. They are read before the next round is launched."""

    _numbers: Tensor  # int32 [S, 2K] in the host's memory: tokens, then the bits of confidences
    _arrived: torch.cuda.Event | None

    def wait(self) -> Drafts:
        """What the device's sequences hold, once it has come to that."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens, confidence = np.split(self._numbers.numpy(), 2, axis=1)
        return Drafts(tokens.astype(np.int64), confidence.copy().view(np.float32))


class RoundSize(NamedTuple):
    """What a round is made for. `shared`: where ranks share experts, the most sequences of any of them, or 0 for no more."""

    sequences: int
    shared: int = 0


class DraftRounds:
    """Rounds for `sequences`, one at a time. `floor_N` int32: positions of a slot before it have no features in `rings`."""

    def __init__(
        self,
        model: FusedDSpark,
        sequences: DeviceSequences,
        rings: Sequence[Tensor],
        floor_N: Tensor,
        calibration: Calibration,
        *,
        depth: int,
        graphs: bool,
        proposals: Proposals | None = None,
    ) -> None:
        """`proposals`: where to keep what drafts are drawn from; None: they share the target's noise."""
        self.model, self.sequences, self.depth, self.device = model, sequences, depth, model.device
        self._rings, self._floor_N = rings, floor_N
        fits = calibration.temperature_F, calibration.scale_FK, calibration.offset_FK
        self._fits = [torch.from_numpy(part).to(model.device) for part in fits]
        self._shape = model.shape(sequences.pad)
        self._work = model.ops.markov_work(model.device)
        self._sizes = default_sizes(sequences.num_slots)
        most, on_cuda = self._sizes[-1], model.device.type == "cuda"
        self._proposals, self._num_asked = proposals, 3 if proposals is None else 6  # numbers of a sequence
        self._asked = torch.zeros(self._num_asked * most, dtype=torch.int64, pin_memory=on_cuda)
        self._numbers = torch.zeros(self._num_asked * most, dtype=torch.int64, device=model.device)
        self._going_S = torch.ones(most, dtype=torch.bool, device=model.device)
        self._fetched_SX = torch.zeros(most, 2 * depth, dtype=torch.int32, pin_memory=on_cuda)
        self._graphs = StepGraphs(self._round, self._ask_nobody, model.device, "a round of drafts") if graphs else None

    def launch(
        self, slots_S: np.ndarray, seeds_S: np.ndarray, temperature_S: np.ndarray, shared: int = 0
    ) -> DraftsOnTheWay:
        """One round; nothing waits for it. Seeds uint64, temperatures float64, 0 where greedy."""
        size = self.size(len(slots_S), shared)
        graphs = self._graphs if fits_graph(self.model.dispatch, self._rows(size)) else None
        if graphs is not None:
            graphs.capture(size)
        self._ask(size.sequences, slots_S, seeds_S, temperature_S)
        if graphs is None:
            self._round(size)
        else:
            graphs.replay(size)
        arrived = torch.cuda.Event() if self.device.type == "cuda" else None
        if arrived is not None:
            arrived.record()
        return DraftsOnTheWay(self._fetched_SX[: len(slots_S)], arrived)

    def size(self, num_sequences: int, shared: int = 0) -> RoundSize:
        """What a round of so many sequences is padded to."""
        return RoundSize(*shared_size(num_sequences, self._sizes, shared))

    def capture(self, num_sequences: int, shared: int = 0) -> None:
        """Capture the graph of such rounds ahead of the first one. No sequence's state is touched."""
        size = self.size(num_sequences, shared)
        if self._graphs is not None and fits_graph(self.model.dispatch, self._rows(size)):
            self._graphs.capture(size)

    @property
    def num_replays(self) -> int:
        return 0 if self._graphs is None else self._graphs.stats.replays

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        if self._graphs is not None:
            self._graphs.close()

    def _rows(self, size: RoundSize) -> int:
        """Of the rank that has most."""
        return max(size) * self._shape.slots

    def _ask_nobody(self, size: RoundSize) -> None:
        nobody = np.zeros(0, np.int64)
        self._ask(size.sequences, nobody, nobody.view(np.uint64), nobody.view(np.float64))

    def _ask(self, size: int, slots_S: np.ndarray, seeds_S: np.ndarray, temperature_S: np.ndarray) -> None:
        """What the round sends first; behind the sequences only padding."""
        count, asked = len(slots_S), self._asked.numpy()[: self._num_asked * size].reshape(self._num_asked, size)
        asked[0, :count], asked[0, count:], asked[1:, count:] = slots_S, self.sequences.padding_slot, 0
        asked[1, :count].view(np.uint64)[:] = seeds_S
        fine = asked.view(np.float64)
        fine[2, :count] = temperature_S
        if self._proposals is not None:
            fine[3, :count], fine[4, :count], asked[5, :count] = self._proposals.filters(slots_S)

    def _begin(self, size: RoundSize, slots_S: Tensor) -> None:
        """Tell the experts' dispatch of the round, where there is one."""
        if self.model.dispatch is not None:
            live_1 = (slots_S != self.sequences.padding_slot).sum(0, keepdim=True) * self._shape.slots
            self.model.dispatch.begin(self._rows(size), live_1)

    def _round(self, size: RoundSize) -> None:
        model, sequences, count = self.model, self.sequences.tensors, size.sequences
        sent = self._numbers[: self._num_asked * count]
        sent.copy_(self._asked[: self._num_asked * count], non_blocking=True)
        slots_S, seeds_S, temperatures, *filters = sent.view(self._num_asked, count)
        self._begin(size, slots_S)
        temperature_S = temperatures.view(torch.float64)
        about = sequences, self._floor_N, model.ropes_P2F, self._shape
        rows = model.ops.draft_rows(slots_S, self._going_S[:count], *about)
        block = model.block_of(rows, self._rings)
        how = seeds_S, rows.position_S, temperature_S
        if self._proposals is None:
            made = model.draft(block, rows.newest_S, *how, self.depth, self._work)
        else:
            top_p_S, min_p_S = (one.view(torch.float64) for one in filters[:2])
            served = Served(slots_S, *how, top_p_S, min_p_S, filters[2].int())
            made = propose(model, block, rows.newest_S, served, self.depth, self._proposals.kept_MV)
        kept = model.ops.weigh_drafts(*made, temperature_S, *self._fits, slots_S, sequences)
        to_host(kept, self._fetched_SX[:count])
