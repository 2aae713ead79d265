"""Rounds of drafting that a device works out alone: from what it knows of its sequences, and back to there.

A round's seeds, temperatures and slots are the host's, in one copy. With graphs everything behind it is one CUDA graph, keyed
by the number of sequences: what a round costs does not depend on how many drafts are checked.

Legend: S sequences · K drafts · N slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import Drafts
from deepinfer.model.fused.decode_sizes import default_sizes, size_of
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.fused.step_graphs import StepGraphs
from deepinfer.speculation.calibration import Calibration


@dataclass(frozen=True)
class DraftsOnTheWay:
    """Drafts whose copy to the host was launched."""

    _numbers: Tensor  # int32 [S, 2K] in the host's memory: tokens, then the bits of confidences
    _arrived: torch.cuda.Event | None

    def wait(self) -> Drafts:
        """What the device's sequences hold, once it has come to that."""
        if self._arrived is not None:
            self._arrived.synchronize()
        tokens, confidence = np.split(self._numbers.numpy(), 2, axis=1)
        return Drafts(tokens.astype(np.int64), np.ascontiguousarray(confidence).view(np.float32))


class DraftRounds:
    """Rounds for `sequences`. `floor_N` int32: positions of a slot before it have no features in `rings`."""

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
    ) -> None:
        self.model, self.sequences, self.depth, self.device = model, sequences, depth, model.device
        self._rings, self._floor_N = rings, floor_N
        fits = calibration.temperature_F, calibration.scale_FK, calibration.offset_FK
        self._fits = [torch.from_numpy(part).to(model.device) for part in fits]
        self._shape = model.shape(sequences.pad)
        self._work = model.ops.markov_work(model.device)
        self._sizes = default_sizes(sequences.num_slots)
        self._numbers = torch.zeros(3 * self._sizes[-1], dtype=torch.int64, device=model.device)
        self._going_S = torch.zeros(self._sizes[-1], dtype=torch.bool, device=model.device)
        self._results: dict[int, Tensor] = {}
        self._graphs = StepGraphs(self._round, self._send_nobody, model.device, "a round of drafts") if graphs else None

    def launch(
        self, slots_S: np.ndarray, seeds_S: np.ndarray, temperature_S: np.ndarray, going_S: Tensor | None
    ) -> DraftsOnTheWay:
        """One round; nothing waits for it. Seeds uint64, temperatures float64, 0 where greedy."""
        size = size_of(len(slots_S), self._sizes)
        if self._graphs is not None:
            self._graphs.capture(size)
        self._send(size, slots_S, seeds_S, temperature_S, going_S)
        if self._graphs is None:
            self._round(size)
        else:
            self._graphs.replay(size)
        return self._to_host(self._results[size][: len(slots_S)])

    def capture(self, num_sequences: int) -> None:
        """Capture the graph of such rounds ahead of the first one. No sequence's state is touched."""
        size = size_of(num_sequences, self._sizes)
        if self._graphs is not None:
            self._graphs.capture(size)

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        self._results.clear()
        if self._graphs is not None:
            self._graphs.close()

    def _send_nobody(self, size: int) -> None:
        nobody = np.zeros(0, np.int64)
        self._send(size, nobody, nobody.view(np.uint64), nobody.view(np.float64), None)

    def _send(
        self,
        size: int,
        slots_S: np.ndarray,
        seeds_S: np.ndarray,
        temperature_S: np.ndarray,
        going_S: Tensor | None,
    ) -> None:
        """Into the buffers that a round looks at; behind the sequences only padding."""
        count = len(slots_S)
        pinned = torch.empty(3 * size, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        slots, seeds, temperatures = pinned.numpy().reshape(3, size)
        slots[:count], slots[count:] = slots_S, self.sequences.padding_slot
        seeds.view(np.uint64)[:count], seeds[count:] = seeds_S, 0
        temperatures.view(np.float64)[:count], temperatures[count:] = temperature_S, 0
        self._numbers[: 3 * size].copy_(pinned, non_blocking=True)
        if going_S is None:
            self._going_S[:count].fill_(True)
        else:
            self._going_S[:count].copy_(going_S)

    def _round(self, size: int) -> None:
        model, sequences = self.model, self.sequences.tensors
        slots_S, seeds_S, temperatures = self._numbers[: 3 * size].view(3, size)
        temperature_S = temperatures.view(torch.float64)
        about = sequences, self._floor_N, model.ropes_P2F, self._shape
        rows = model.ops.draft_rows(slots_S, self._going_S[:size], *about)
        block = model.block_of(rows, self._rings)
        how = seeds_S, rows.position_S, temperature_S
        tokens_SK, evidence_SK = model.draft(block, rows.newest_S, *how, self.depth, self._work)
        self._results[size] = model.ops.weigh_drafts(
            tokens_SK, evidence_SK, temperature_S, *self._fits, slots_S, sequences
        )

    def _to_host(self, numbers: Tensor) -> DraftsOnTheWay:
        if self.device.type != "cuda":
            return DraftsOnTheWay(numbers, None)
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return DraftsOnTheWay(host, arrived)
