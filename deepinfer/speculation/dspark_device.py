"""DSpark on a device: it drafts between a step and the next without the host knowing its tokens.

Everything is taken from what the device knows of its sequences. Drafts are drawn with the noise of coupled verification, or of
rejection sampling, and stay there for the next step; the host reads them when it likes.

Shapes: T rows of a step · F features · S sequences · N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.model.fused import glue
from deepinfer.model.ring_writes import ring_writes
from deepinfer.speculation.draft_rounds import DraftRounds, DraftsOnTheWay
from deepinfer.speculation.dspark import check_depth

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer.interfaces import StepInput
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.decode_step import DecodeRows
    from deepinfer.model.fused.dspark import FusedDSpark
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.speculation.calibration import Calibration
    from deepinfer.speculation.proposals import Proposals

INT32_MOST = 2**31 - 1


class DeviceDSpark:
    """`cache` is the model's, with one slot more than there are sequences: the last is the padding slot's.

    `temperatures` and `seeds` say how slots [S] are served (float64, 0 where greedy; uint64). With `graphs` (CUDA only) a round
    of drafts is one launch. `proposals` is for rejection sampling. Else as `speculation.dspark.DSpark`.
    """

    def __init__(
        self,
        model: FusedDSpark,
        cache: ModelCache,
        *,
        depth: int,
        calibration: Calibration,
        temperatures: Callable[[np.ndarray], np.ndarray],
        seeds: Callable[[np.ndarray], np.ndarray],
        graphs: bool = False,
        proposals: Proposals | None = None,
    ) -> None:
        config = model.config
        check_depth(depth, config, cache.layout)
        self.model, self.cache, self.depth, self.device = model, cache, depth, model.device
        self.calibration, self.temperatures, self.seeds, self.graphs = calibration, temperatures, seeds, graphs
        self.padding_slot, self._proposals = cache.num_slots - 1, proposals
        self._rings = cache.rings[config.num_hidden_layers :]
        self._floor_N = torch.zeros(len(cache.state), dtype=torch.int32, device=model.device)  # no features before it
        self._rounds: DraftRounds | None = None

    @torch.inference_mode()
    def begin(self, slots: np.ndarray, floor_S: np.ndarray) -> None:
        """Prompts in `slots`, which have no features before positions `floor_S`; before their rows are observed."""
        sent = glue.to_device({"slots": slots, "floor": np.minimum(floor_S, INT32_MOST)}, self.device)
        self._floor_N[sent["slots"]] = sent["floor"]

    @torch.inference_mode()
    def observe(self, step: StepInput, features_TF: Tensor) -> None:
        """Keys of the newest rows of every sequence go into the draft rings, its own and those of the step's snapshots."""
        ring_slots = self.cache.layout.ring_slots
        floor_S = step.window_from if step.upper_from is None else step.upper_from
        writes = ring_writes(step, ring_slots, self.cache.num_slots)
        rows = writes.rows_T.numpy()
        arrays = {
            "slots": step.state_slots,
            "floor": np.zeros_like(step.state_slots) if floor_S is None else np.minimum(floor_S, INT32_MOST),
            "rows": rows,
            "positions": step.positions[rows],
            "to": (writes.outer_T * ring_slots + writes.inner_T).numpy(),
        }
        sent = glue.to_device(arrays, self.device)
        self._floor_N[sent["slots"]] = sent["floor"]
        self.model.observe(features_TF[sent["rows"]], sent["positions"], sent["to"], self._rings)

    @torch.inference_mode()
    def observe_rows(self, rows: DecodeRows) -> None:
        """Keys of all rows of a step that the device resolved; where sequences have no features is known from their prompts.

        Launches only, the same for every step of a size, so that they may be part of its graph."""
        assert rows.features_TF is not None, "the drafter needs the step's features"
        store_T = torch.where(rows.slots_T == self.padding_slot, -1, rows.ring_rows_T)
        self.model.observe(rows.features_TF, rows.positions_T, store_T, self._rings)

    @torch.inference_mode()
    def launch(self, slots_S: np.ndarray, sequences: DeviceSequences, shared: int = 0) -> DraftsOnTheWay:
        """Draft for `slots_S` (int64, all different) behind what `sequences` holds by then, and leave the drafts there.

        None get those at their end. What the round before brought must have been read. `shared`: the most sequences, padded,
        that any rank drafts for, where ranks share experts.
        """
        rounds = self._rounds_of(sequences)
        return rounds.launch(slots_S, self.seeds(slots_S), self.temperatures(slots_S), shared)

    @torch.inference_mode()
    def capture(self, num_sequences: int, sequences: DeviceSequences, shared: int = 0) -> None:
        """Capture the graph of such rounds ahead of the first one. No sequence's state is touched."""
        self._rounds_of(sequences).capture(num_sequences, shared)

    def padded(self, num_sequences: int, sequences: DeviceSequences) -> int:
        """For how many sequences a round of so many is made."""
        return self._rounds_of(sequences).size(num_sequences).sequences

    @property
    def num_replays(self) -> int:
        """Rounds that were one graph."""
        return 0 if self._rounds is None else self._rounds.num_replays

    def close(self) -> None:
        """Give back what graphs hold."""
        if self._rounds is not None:
            self._rounds.close()

    def _rounds_of(self, sequences: DeviceSequences) -> DraftRounds:
        if self._rounds is None:
            about = self._rings, self._floor_N, self.calibration
            self._rounds = DraftRounds(
                self.model, sequences, *about, depth=self.depth, graphs=self.graphs, proposals=self._proposals
            )
        assert self._rounds.sequences is sequences, "a drafter's rounds read the sequences of one device"
        return self._rounds
