"""From hidden states to the sequences' new tokens as one CUDA graph: head, choice of tokens, acceptance, append.

For steps of the decode lane, unless their masks or edits are very many: the host writes what is asked into memory that stays
and launches one thing. Rows, sequences and log probabilities are padded to few sizes; padding never changes
the bits of other rows.

Legend: T rows of logits · D hidden.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from deepinfer.model.fused.decode_sizes import default_sizes, size_of
from deepinfer.model.fused.step_graphs import GraphStats, StepGraphs
from deepinfer.sampling.device_fixed import FixedRows, SamplingSize
from deepinfer.sampling.device_room import FixedRoom

if TYPE_CHECKING:
    from deepinfer.interfaces import VerifyRows
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.sampling.device_rows import DeviceSampler, Launched

COLUMNS = (0, 1, 6, 21, 129)  # of log probabilities: none, the chosen token's, and 5, 20, 128 others


class _Key(NamedTuple):
    """A graph reads hidden states where they were when it was captured."""

    size: SamplingSize
    num_hidden: int
    address: int


class SamplingGraphs:
    """`logits` float32 [T, V] of hidden states [T, D]. Without `graphs` the same is launched piece by piece."""

    def __init__(
        self,
        sampler: DeviceSampler,
        logits: Callable[[Tensor], Tensor],
        sequences: DeviceSequences,
        *,
        verify_length: int,
        graphs: bool,
    ) -> None:
        self._sampler, self._logits, self._sequences = sampler, logits, sequences
        self._sizes = default_sizes(sequences.num_slots * (1 + verify_length))
        self._room = FixedRoom(sampler, self._sizes[-1])
        self._fixed: dict[_Key, FixedRows] = {}
        self._hidden: dict[_Key, Tensor] = {}
        self._ready: tuple[VerifyRows, _Key] | None = None
        self._graphs = StepGraphs(self._run, self._stand_in, sampler.device) if graphs else None
        self.stats = GraphStats() if self._graphs is None else self._graphs.stats

    def takes(self, rows: VerifyRows) -> bool:
        """Whether what these rows ask for finds room."""
        return self._room.takes(rows, self._sampler.edits_of(rows))

    def launch(self, hidden_TD: Tensor, picked: np.ndarray, rows: VerifyRows) -> Launched:
        """Tokens of `rows`, whose logits are those of `picked` int64 [T] of the hidden states, go to the sequences' ends."""
        self.make_ready(hidden_TD, picked, rows)
        assert self._ready is not None
        key, self._ready = self._ready[1], None
        self._fixed[key].write(rows, picked)
        if self._graphs is None:
            self._run(key)
            self.stats.direct += 1
        else:
            self._graphs.replay(key)
        return self._fixed[key].launched(rows)

    def make_ready(self, hidden_TD: Tensor, picked: np.ndarray, rows: VerifyRows) -> None:
        """The first of a size is captured, which takes a while, and may wait."""
        if self._ready is not None and self._ready[0] is rows:
            return
        columns = COLUMNS[bisect_left(COLUMNS, self._sampler.columns(rows))]
        size = SamplingSize(size_of(len(picked), self._sizes), size_of(len(rows.slots), self._sizes), columns)
        key = _Key(size, len(hidden_TD), hidden_TD.data_ptr())
        if key not in self._fixed:
            self._make(key, hidden_TD, rows.drafts.shape[1])
        self._ready = rows, key

    def close(self) -> None:
        """End all graphs, once the device is through with them."""
        if self._graphs is not None:
            self._graphs.close()
        self._fixed.clear()
        self._hidden.clear()

    def _make(self, key: _Key, hidden_TD: Tensor, depth: int) -> None:
        self._fixed[key] = FixedRows(self._sampler, self._room, key.size, depth, self._sequences.padding_slot)
        self._hidden[key] = hidden_TD
        if self._graphs is None:
            return
        try:
            self._graphs.capture(key)
        except RuntimeError:
            del self._fixed[key], self._hidden[key]
            raise

    def _stand_in(self, key: _Key) -> None:
        self._fixed[key].write_nothing()

    def _run(self, key: _Key) -> None:
        fixed = self._fixed[key]
        sent = fixed.send()
        logits_TV = self._logits(self._hidden[key].index_select(0, sent["picked_T"]))
        token_T, counts_S = fixed.choose(logits_TV, sent)
        self._sequences.append(sent["slots_S"], token_T, sent["row_starts_X"], counts_S)
