"""What the sampler knows of the sequences in its slots: their sampling parameters, seeds, edits and histories.

N slots · V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.sampling.bad_words import BadWords, TokenBytes
from deepinfer.sampling.params import GREEDY_BELOW, ParamsError
from deepinfer.sampling.slot_edits import SlotEdits, needs_edits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import Request, SamplingParams

NOT_ASKED = -1  # number of log probabilities where none are wanted
_WORD_LISTS = 64  # lists of bad words that are kept ready, those asked for last


class SlotParams:
    """Slot-indexed parameters as arrays; edits and prompts as objects.

    Numbers that a device wants lie in two tables, so that many slots' are taken at once; the arrays by name are their rows.
    """

    def __init__(
        self, vocab_size: int, num_slots: int, eos_token_ids: Sequence[int], token_bytes: Sequence[bytes] | None
    ) -> None:
        self.vocab_size, self.num_slots = vocab_size, num_slots
        # temperature, top-p, min-p, repetition, frequency, presence; top-k, log probabilities, whether processed
        self.fine_6N, self.whole_3N = np.ones((6, num_slots)), np.zeros((3, num_slots), np.int32)
        self.temperature_N, self.top_p_N, self.min_p_N, self.repetition_N, self.frequency_N, self.presence_N = (
            self.fine_6N
        )
        self.top_k_N, self.logprobs_N, self.processed_N = self.whole_3N
        self.logprobs_N[:] = NOT_ASKED
        self.seed_N = np.zeros(num_slots, np.uint64)
        self.num_prompt_N = np.zeros(num_slots, np.int64)
        self.prompt_logprobs_N = np.full(num_slots, NOT_ASKED)
        self.greedy_N = np.zeros(num_slots, bool)
        self.filtered_N = np.zeros(num_slots, bool)  # by top-k, top-p or min-p; never where greedy
        self.edited_N = np.zeros(num_slots, bool)
        self.edits: list[SlotEdits | None] = [None] * num_slots
        self.prompts: list[np.ndarray | None] = [None] * num_slots
        self._eos_token_ids = tuple(eos_token_ids)
        self._bytes_of = token_bytes
        self._vocabulary: TokenBytes | None = None
        self._bad_words: dict[tuple[str, ...], BadWords] = {}

    def admit(self, slot: int, request: Request) -> None:
        params = request.params
        self.temperature_N[slot] = params.temperature
        self.top_k_N[slot] = params.top_k
        self.top_p_N[slot] = params.top_p
        self.min_p_N[slot] = params.min_p
        self.repetition_N[slot] = params.repetition_penalty
        self.frequency_N[slot] = params.frequency_penalty
        self.presence_N[slot] = params.presence_penalty
        self.seed_N[slot] = request.seed
        self.num_prompt_N[slot] = len(request.prompt_ids)
        self.logprobs_N[slot] = NOT_ASKED if params.logprobs is None else params.logprobs
        self.prompt_logprobs_N[slot] = NOT_ASKED if params.prompt_logprobs is None else params.prompt_logprobs
        self.processed_N[slot] = params.logprobs_mode == "processed"
        self.greedy_N[slot] = params.temperature < GREEDY_BELOW
        filtered = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.filtered_N[slot] = filtered and not self.greedy_N[slot]
        self.prompts[slot] = np.asarray(request.prompt_ids, np.int64)
        self.edited_N[slot] = needs_edits(params)
        self.edits[slot] = None
        if self.edited_N[slot]:
            self.edits[slot] = SlotEdits(request, self.vocab_size, self._eos_token_ids, self.words_of(params))

    def release(self, slot: int) -> None:
        self.edits[slot] = None
        self.prompts[slot] = None
        self.edited_N[slot] = False

    def write(self, slot: int, position: int, token_id: int) -> None:
        """The token at `position` of a slot is `token_id`, and nothing is known after it."""
        edits = self.edits[slot]
        if edits is not None and edits.history is not None:
            edits.history.write(position, token_id)

    def words_of(self, params: SamplingParams) -> BadWords | None:
        """The bad words of these parameters, ready for use. Raises ParamsError where there are no bytes of tokens."""
        words = params.bad_words
        if not words:
            return None
        if self._bytes_of is None:
            raise ParamsError(["bad_words are texts, and this model has no tokenizer.json: ban ids with logit_bias"])
        if words not in self._bad_words:
            if self._vocabulary is None:
                self._vocabulary = TokenBytes(self._bytes_of)
            if len(self._bad_words) == _WORD_LISTS:
                del self._bad_words[next(iter(self._bad_words))]
            self._bad_words[words] = BadWords(words, self._vocabulary)
        return self._bad_words[words]
