"""The compact plan of a decode step on its way to the device: pinned numbers, one copy, one buffer that every step reuses.

What the numbers mean is said in `deepinfer.ops.decode_rows`.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.interfaces import StepPlan
from deepinfer.ops.decode_rows import HEADER

HALF = 8  # pinned buffers in turn, in two halves: an event a half says that its copies are through
INT32_MOST = 2**31 - 1


class PinnedTurns:
    """`total` int32 numbers in pinned memory, several times over, so that one can be filled while others are copied."""

    def __init__(self, total: int, device: torch.device, half: int = HALF) -> None:
        on_cuda, self._half = device.type == "cuda", half
        self._pinned = [torch.zeros(total, dtype=torch.int32, pin_memory=on_cuda) for _ in range(2 * half)]
        self._arrays = [pinned.numpy() for pinned in self._pinned]
        self._sent = [torch.cuda.Event() for _ in range(2)] if on_cuda else []
        self._turn = -1

    def take(self) -> np.ndarray:
        """The next to be filled; waits for copies at least `half` turns ago, which are through long since."""
        self._turn = (self._turn + 1) % (2 * self._half)
        half, place = divmod(self._turn, self._half)
        if self._sent and place == 0:
            self._sent[half].synchronize()
        return self._arrays[self._turn]

    def send(self, to_X: Tensor, used: int) -> None:
        """The first `used` of the numbers that were taken last, on the current stream."""
        to_X[:used].copy_(self._pinned[self._turn][:used], non_blocking=True)
        half, place = divmod(self._turn, self._half)
        if self._sent and place == self._half - 1:
            self._sent[half].record()


@dataclass(frozen=True)
class StepSize:
    """What a decode step is made for; `drafts`: whether any are checked. One graph for each.

    `shared`: where ranks share experts, the most rows that any of them has, or 0 where they are no more than `rows`.
    """

    rows: int
    sequences: int
    blocks: int
    drafts: bool
    shared: int = 0


class PlanSender:
    """Brings plans to `device`; `padding_slot` is the slot of the sequences that are none."""

    def __init__(
        self, max_sequences: int, max_blocks: int, padding_slot: int, device: torch.device, half: int = HALF
    ) -> None:
        self.max_sequences, self.padding_slot, self.device = max_sequences, padding_slot, device
        total = HEADER + 4 * (max_sequences + 1) + max_sequences * max_blocks
        self.numbers_X = torch.zeros(total, dtype=torch.int32, device=device)
        self._turns = PinnedTurns(total, device, half)

    def send(self, plan: StepPlan | None, size: StepSize) -> None:
        """Into `numbers_X`, on the current stream. Without a plan all sequences are padding."""
        self._turns.send(self.numbers_X, self._fill(self._turns.take(), plan, size))

    def _fill(self, array: np.ndarray, plan: StepPlan | None, size: StepSize) -> int:
        """How many of the numbers are in use."""
        count, at = size.sequences + 1, HEADER
        live, columns = (0, 0) if plan is None else plan.block_tables.shape
        array[:HEADER] = live, 0 if plan is None else min(plan.num_drafts, INT32_MOST), columns, 0
        of_sequences = array[at : at + 4 * count].reshape(4, count)
        of_sequences[0, live:], of_sequences[1:, live:] = self.padding_slot, 0
        if plan is not None:
            of_sequences[0, :live] = plan.slots
            for row, floor_S in enumerate((plan.window_from, plan.upper_from, plan.write_from), 1):
                np.minimum(floor_S, INT32_MOST, out=of_sequences[row, :live], casting="unsafe")
            first = at + 4 * count
            array[first : first + live * columns].reshape(live, columns)[...] = plan.block_tables
        return at + 4 * count + live * columns
