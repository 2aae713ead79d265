"""Where a model's keys live: one pool of token blocks for compressed keys, one pool of per-sequence state.

Legend: A blocks or slots · B rows of a block or ring · R bytes of a packed row, or numbers of a plain one.
"""

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout, SourceLayout
from deepinfer.arch.config import V41Config
from deepinfer.interfaces import StepInput
from deepinfer.ops.rows import RowKind

NAN_BYTE = 0xFF  # decodes to NaN in every packed format, and in float32, float64 and bfloat16


class ModelCache:
    """Storage for `num_blocks` blocks of tokens and `num_slots` sequences, as `layout` lays it out.

    Nothing needs clearing when a block or a slot changes hands: a reader masks whatever its sequence did not write.
    A slot holds first the compressor tails (accumulator dtype), then one ring of window keys per layer. Behind the slots of
    running sequences lie `num_snapshots` more: snapshot i is row `num_slots` + i of `state`. The last `num_spare` are nobody's:
    workspace of a step, whose rows have numbers as those of rings.
    """

    def __init__(
        self,
        config: V41Config,
        layout: CacheLayout,
        *,
        num_blocks: int,
        num_slots: int,
        num_snapshots: int = 0,
        num_spare: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.layout, self.num_blocks = config, layout, num_blocks
        self.num_slots, self.num_snapshots, self.num_spare = num_slots, num_snapshots, num_spare
        self.dtype: torch.dtype = getattr(torch, layout.dtype)
        self.packed = layout.numerics != "none"
        self.blocks = torch.zeros(num_blocks, layout.padded_block_bytes, dtype=torch.uint8, device=device)
        num_states = num_slots + num_snapshots + num_spare
        self.state = torch.zeros(num_states, layout.padded_state_bytes, dtype=torch.uint8, device=device)
        self._row_dtype = torch.uint8 if self.packed else self.dtype
        self.main_rows = {s.layer: self._block_rows(s, s.main_offset, layout.main_entry_bytes) for s in layout.sources}
        self.index_rows = {
            s.layer: self._block_rows(s, s.index_offset, layout.index_entry_bytes) for s in layout.sources
        }
        self.tails = {layer: self._tail(i) for i, layer in enumerate(layout.tail_sources)}
        self.rings = [self._ring(layer) for layer in range(layout.num_window_layers)]

    @property
    def nbytes(self) -> int:
        """Without the spare states."""
        return self.blocks.nbytes + self.state[: len(self.state) - self.num_spare].nbytes

    def kind(self, packed_kind: RowKind) -> RowKind:
        """The row kind to store `packed_kind` rows as: itself, or plain numbers when nothing is quantised."""
        return packed_kind if self.packed else "plain"

    def bring_states(self, step: StepInput) -> None:
        """Before a step: restore slots from snapshots, and begin the step's own snapshots as copies of their slots."""
        if step.restores is not None and len(step.restores):
            slots, snapshots = self._numbers(step.restores).unbind(1)
            self.state[slots] = self.state[self.num_slots + snapshots]
        if step.snapshots is not None and len(step.snapshots):
            sequences, boundaries, snapshots = step.snapshots.T
            first, last = (step.positions[step.row_starts[sequences + at] - at] for at in (0, 1))
            assert ((first <= boundaries) & (boundaries <= last + 1)).all(), (
                "a boundary lies in or beside the step's rows"
            )
            slots, copies = self._numbers(np.stack((step.state_slots[sequences], self.num_slots + snapshots)))
            self.state[copies] = self.state[slots]

    def fill_nan(self, blocks: list[int]) -> None:
        """Overwrite blocks with bytes that decode to NaN: what no test may ever see again."""
        self.blocks[blocks] = NAN_BYTE

    def fill_nan_slots(self, slots: list[int]) -> None:
        """The same for the rings and tails of slots, or of snapshots by their row of `state`."""
        self.state[slots] = NAN_BYTE

    def _numbers(self, array: np.ndarray) -> Tensor:
        """On the caches' device, which nothing waits for."""
        numbers, device = torch.from_numpy(array), self.state.device
        return (numbers.pin_memory() if device.type == "cuda" else numbers).to(device, non_blocking=True)

    def _block_rows(self, source: SourceLayout, offset: int, entry_bytes: int) -> Tensor:
        """View [num_blocks, entries, R]."""
        shape = (self.num_blocks, source.entries)
        return _strided(
            self.blocks, self._row_dtype, shape, (self.layout.padded_block_bytes, entry_bytes), offset, entry_bytes
        )

    def _ring(self, layer: int) -> Tensor:
        """View [slots and snapshots, ring_slots, R] of a window layer; draft layers follow the trunk."""
        lay, entry_bytes = self.layout, self.layout.window_entry_bytes
        offset = len(lay.tail_sources) * lay.tail_bytes + layer * lay.ring_slots * entry_bytes
        shape = (len(self.state), lay.ring_slots)
        return _strided(self.state, self._row_dtype, shape, (lay.padded_state_bytes, entry_bytes), offset, entry_bytes)

    def _tail(self, number: int) -> Tensor:
        """View [slots and snapshots, tail_slots, 2 · K]: a token's value, then its gate."""
        lay = self.layout
        entry_bytes = lay.tail_bytes // lay.tail_slots
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        shape = (len(self.state), lay.tail_slots)
        return _strided(
            self.state, dtype, shape, (lay.padded_state_bytes, entry_bytes), number * lay.tail_bytes, entry_bytes
        )


def _strided(
    pool: Tensor,
    dtype: torch.dtype,
    shape: tuple[int, int],
    strides_bytes: tuple[int, int],
    offset_bytes: int,
    row_bytes: int,
) -> Tensor:
    size = dtype.itemsize
    assert not any(n % size for n in (*strides_bytes, offset_bytes, row_bytes)), (
        "a row must begin on a border of its dtype"
    )
    strides = tuple(n // size for n in strides_bytes)
    return pool.view(-1).view(dtype).as_strided((*shape, row_bytes // size), (*strides, 1), offset_bytes // size)
