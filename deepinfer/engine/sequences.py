"""State of the sequences that hold a slot: NumPy arrays indexed by slot, so that a step touches no Python object per sequence.

N slots · L tokens a sequence may have · G n-gram columns · B blocks a sequence may own · K drafts.
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import Request

NO_ID = -1
FREE, PREFILL, DECODE, PREEMPTED = range(4)  # values of `stage`


class SequenceTable:
    """Every array has one entry or row for each slot. Large arrays are zero pages of the system until they are written."""

    def __init__(self, limits: EngineLimits) -> None:
        slots = limits.max_num_seqs
        self._replay_keep = limits.replay_keep
        self.pad = limits.ngram_size - 1  # columns of -1 before position 0: n-grams need no special case at the start
        self.stride = self.pad + limits.max_model_len
        self.tokens = np.zeros((slots, self.stride), dtype=np.int32)
        self.tokens[:, : self.pad] = NO_ID
        self.flat_tokens = self.tokens.reshape(-1)
        self.block_tables = np.full((slots, limits.blocks_for(limits.max_model_len)), NO_ID, dtype=np.int64)
        self.num_blocks = np.zeros(slots, dtype=np.int64)
        self.capacity_tokens = np.zeros(slots, dtype=np.int64)  # num_blocks in tokens
        self.num_tokens = np.zeros(slots, dtype=np.int64)  # known: prompt and what was generated
        self.num_computed = np.zeros(
            slots, dtype=np.int64
        )  # of them in the caches; of a prompt also what is on its way in
        self.pending = np.zeros(slots, dtype=np.int64)  # steps in flight that give the sequence tokens
        self.window_from = np.zeros(slots, dtype=np.int64)  # see StepPlan
        self.upper_from = np.zeros(slots, dtype=np.int64)
        self.write_from = np.zeros(slots, dtype=np.int64)
        self.confidence = np.full(
            (2, slots, limits.draft_depth), np.nan, dtype=np.float32
        )  # of two steps, newest first
        self.num_prompt = np.zeros(slots, dtype=np.int64)
        self.length_end = np.zeros(slots, dtype=np.int64)  # num_tokens at which the sequence ends for length
        self.stop_from = np.zeros(slots, dtype=np.int64)  # stop ids count once num_tokens is beyond this
        self.stop_ids = np.full((slots, 1), NO_ID, dtype=np.int64)
        self.drafts = np.full((slots, limits.draft_depth), NO_ID, dtype=np.int64)  # of the last step
        self.priority = np.zeros(slots, dtype=np.int64)
        self.arrival = np.zeros(slots, dtype=np.int64)  # running number of submission
        self.request_id = np.full(slots, NO_ID, dtype=np.int64)
        self.stage = np.full(slots, FREE, dtype=np.int8)
        self.epoch = np.zeros(
            slots, dtype=np.int64
        )  # rises when the sequence loses its place: late results are dropped

    def enter(self, slot: int, request: Request, arrival: int, length_end: int, stop_ids: list[int]) -> None:
        """`request` takes `slot`. Its blocks come later."""
        prompt = request.prompt_ids
        self.tokens[slot, self.pad : self.pad + len(prompt)] = prompt
        self.num_tokens[slot] = self.num_prompt[slot] = len(prompt)
        self.num_computed[slot] = self.pending[slot] = 0
        self.window_from[slot] = self.write_from[slot] = 0
        self.upper_from[slot] = max(0, len(prompt) - self._replay_keep) if self._replay_keep else 0
        self.confidence[:, slot] = np.nan
        self.drafts[slot] = NO_ID
        self.length_end[slot] = length_end
        self.stop_from[slot] = len(prompt) + request.params.min_tokens
        if len(stop_ids) > self.stop_ids.shape[1]:
            more = len(stop_ids) - self.stop_ids.shape[1]
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, more)), constant_values=NO_ID)
        self.stop_ids[slot] = NO_ID
        self.stop_ids[slot, : len(stop_ids)] = stop_ids
        self.priority[slot] = request.priority
        self.arrival[slot] = arrival
        self.request_id[slot] = request.request_id

    def leave(self, slot: int) -> None:
        self.stage[slot] = FREE
        self.request_id[slot] = NO_ID
        self.lose_place(slot)

    def lose_place(self, slot: int) -> None:
        """Whatever is in flight for `slot` will be dropped when it comes."""
        self.epoch[slot] += 1
        self.pending[slot] = 0

    def remember(self, slots: np.ndarray, drafts: np.ndarray, confidence: np.ndarray) -> None:
        """Drafts and their confidences [.., K] as a step made them for `slots`."""
        self.drafts[slots] = drafts
        self.confidence[1, slots] = self.confidence[0, slots]
        self.confidence[0, slots] = confidence

    def give_blocks(self, slot: int, ids: np.ndarray, block_tokens: int) -> None:
        have = int(self.num_blocks[slot])
        self.block_tables[slot, have : have + len(ids)] = ids
        self.num_blocks[slot] = have + len(ids)
        self.capacity_tokens[slot] = (have + len(ids)) * block_tokens

    def take_blocks(self, slot: int) -> np.ndarray:
        """The blocks of `slot`, which has none afterwards; what it had computed is gone with them."""
        ids = self.block_tables[slot, : self.num_blocks[slot]].copy()
        self.block_tables[slot, : self.num_blocks[slot]] = NO_ID
        self.num_blocks[slot] = self.capacity_tokens[slot] = self.num_computed[slot] = 0
        return ids
