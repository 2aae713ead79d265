"""DSpark as a drafter on a device: beside the steps, or between a step and the next without the host knowing its tokens.

Two ways to draft. `draft` is a Drafter's: the host knows the newest tokens and chooses among the logits of every slot. `launch`
takes everything from what the device knows of its sequences, draws with the noise of coupled verification and leaves the
drafts there for the next step; the host reads them when it likes.

Shapes: T rows of a step · F features · S sequences · K drafts · V vocabulary · N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from deepinfer.interfaces import Drafts
from deepinfer.model.fused import glue
from deepinfer.model.ring_writes import ring_writes
from deepinfer.speculation.draft_rounds import DraftRounds, DraftsOnTheWay
from deepinfer.speculation.dspark import check_depth
from deepinfer.speculation.observed_rows import ObservedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from deepinfer.interfaces import StepInput
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.model.fused.decode_step import DecodeRows
    from deepinfer.model.fused.dspark import FusedDSpark
    from deepinfer.model.fused.sequences import DeviceSequences
    from deepinfer.speculation.calibration import Calibration

INT32_MOST = 2**31 - 1


class DeviceDSpark:
    """`cache` is the model's, with one slot more than there are sequences: the last is the padding slot's.

    `temperatures` and `seeds` say how slots [S] are served (float64, 0 where greedy; uint64). With `graphs` (CUDA only) a round
    of drafts is one launch, and so is the observation of a step's rows. Else as `speculation.dspark.DSpark`.
    """

    needs_features = True

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
    ) -> None:
        config = model.config
        check_depth(depth, config, cache.layout)
        self.model, self.cache, self.depth, self.device = model, cache, depth, model.device
        self.calibration, self.temperatures, self.seeds, self.graphs = calibration, temperatures, seeds, graphs
        self.padding_slot = cache.num_slots - 1
        self._rings = cache.rings[config.num_hidden_layers :]
        self._floor_N = torch.zeros(len(cache.state), dtype=torch.int32, device=model.device)  # no features before it
        self._rounds: DraftRounds | None = None
        self._observed: ObservedRows | None = None

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
        """Keys of all rows of a step that the device resolved; where sequences have no features is known from their prompts."""
        assert rows.features_TF is not None, "the drafter needs the step's features"
        store_T = torch.where(rows.slots_T == self.padding_slot, -1, rows.ring_rows_T)
        given = rows.features_TF, rows.positions_T, store_T
        if not self.graphs:
            self._observe(*given)
            return
        if self._observed is None:
            most_rows = self.padding_slot * (1 + self.depth)
            like = rows.features_TF
            self._observed = ObservedRows(self._observe, most_rows, like.shape[1], like.dtype, like.device)
        self._observed(*given)

    @torch.inference_mode()
    def draft(
        self,
        slots: np.ndarray,
        tokens_NL: np.ndarray,
        num_tokens: np.ndarray,
        pad: int,
        choose: Callable[..., np.ndarray],
    ) -> Drafts:
        """See `interfaces.Drafter`; `choose` gets float32 logits [S, V] in the host's memory."""
        if not len(slots):
            return Drafts.none(self.depth)
        position_S = num_tokens - 1  # of the newest token
        arrays = {"newest": tokens_NL[slots, pad + position_S], "position": position_S, "slots": slots}
        sent = glue.to_device(arrays, self.device)
        floor_S = self._floor_N[sent["slots"]]
        block = self.model.block(sent["newest"], sent["position"], sent["slots"], floor_S, self._rings)
        base_SKV = self.model.base_logits(block.normed_SQD, self.depth)
        going_S, previous, tokens = np.ones(len(slots), bool), [sent["newest"]], []
        for number in range(self.depth):
            logits_SV = self.model.biased(base_SKV[:, number], previous[-1])
            chosen_S = choose(number, to_host(logits_SV.float()))
            going_S &= chosen_S >= 0
            tokens.append(np.where(going_S, chosen_S, -1))
            previous.append(glue.to_device({"chosen": chosen_S}, self.device)["chosen"])
        evidence_SK = self.model.evidence(block.hidden_SQD[:, : self.depth], torch.stack(previous[:-1], 1))
        token_ids = np.stack(tokens, 1)
        chance_SK = self.calibration(to_host(evidence_SK).double().numpy(), self.temperatures(slots))
        return Drafts(token_ids, np.where(token_ids >= 0, chance_SK, np.float32(0)))

    @torch.inference_mode()
    def launch(self, slots_S: np.ndarray, sequences: DeviceSequences, going: Tensor | None = None) -> DraftsOnTheWay:
        """Draft for `slots_S` (int64, all different) behind what `sequences` holds by then, and leave the drafts there.

        None get those at their end, and those whose `going` (bool [S] on the device; None: all) is False.
        """
        rounds = self._rounds_of(sequences)
        return rounds.launch(slots_S, self.seeds(slots_S), self.temperatures(slots_S), going)

    @torch.inference_mode()
    def capture(self, num_sequences: int, sequences: DeviceSequences) -> None:
        """Capture the graph of such rounds ahead of the first one. No sequence's state is touched."""
        self._rounds_of(sequences).capture(num_sequences)

    def finish(self, launched: DraftsOnTheWay) -> Drafts:
        """What the device's sequences hold since that round; waits for it."""
        return launched.wait()

    def close(self) -> None:
        """Give back what graphs hold."""
        for part in (self._rounds, self._observed):
            if part is not None:
                part.close()

    def _rounds_of(self, sequences: DeviceSequences) -> DraftRounds:
        if self._rounds is None:
            about = self._rings, self._floor_N, self.calibration
            self._rounds = DraftRounds(self.model, sequences, *about, depth=self.depth, graphs=self.graphs)
        assert self._rounds.sequences is sequences, "a drafter's rounds read the sequences of one device"
        return self._rounds

    def _observe(self, features_TF: Tensor, positions_T: Tensor, store_T: Tensor) -> None:
        self.model.observe(features_TF, positions_T, store_T, self._rings)


def to_host(x: Tensor) -> Tensor:
    """Waits for the device. Pinned memory takes the copy at the bus's speed."""
    if x.device.type != "cuda":
        return x
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    host.copy_(x, non_blocking=True)
    torch.cuda.current_stream(x.device).synchronize()
    return host
