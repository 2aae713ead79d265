"""What one request changes in its own logits before anything is drawn: bias, penalties, bad words, minimum length, grammar.

Only requests that ask for one of these have an object here; the others never leave the sampler's vectorised paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepinfer.sampling.history import History

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepinfer.interfaces import Request, SamplingParams
    from deepinfer.sampling.bad_words import BadWords


def needs_edits(params: SamplingParams) -> bool:
    return bool(
        params.logit_bias
        or params.bad_words
        or params.min_tokens
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
    )


class SlotEdits:
    """The edits of one sequence. `apply` works in float64 [V] and in this order: bias, penalties, bad words, minimum, mask."""

    def __init__(
        self, request: Request, vocab_size: int, eos_token_ids: Sequence[int], bad_words: BadWords | None
    ) -> None:
        params = request.params
        self._params = params
        self.min_tokens = params.min_tokens
        self.num_prompt = len(request.prompt_ids)
        self.ending_ids = np.array(
            [*([] if params.ignore_eos else eos_token_ids), *params.stop_token_ids], dtype=np.int64
        )
        bias = params.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.biases = np.fromiter(bias.values(), np.float64, len(bias))
        self.penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1, 0, 0)
        self.bad_words = bad_words
        self.history: History | None = None
        if self.penalised or self.bad_words:
            self.history = History(request.prompt_ids, vocab_size)

    def apply(self, logits_V: np.ndarray, position: int) -> np.ndarray:
        """Edited copy (float64) of the logits that choose the token at `position`. Ruled-out tokens are -inf."""
        edited_V = logits_V.astype(np.float64)
        edited_V[self.bias_ids] += self.biases
        if self.penalised and self.history:
            self._penalise(edited_V, self.history, position)
        num_answer = position - self.num_prompt
        if self.bad_words and self.history and num_answer >= 0:
            edited_V[self.bad_words.banned(self.history.before(position)[self.num_prompt :])] = -np.inf
        if 0 <= num_answer < self.min_tokens:
            edited_V[self.ending_ids] = -np.inf
        return edited_V

    def _penalise(self, edited_V: np.ndarray, history: History, position: int) -> None:
        params = self._params
        if params.repetition_penalty != 1.0:
            seen_V = history.seen(position)
            penalty = params.repetition_penalty
            edited_V[seen_V] = np.where(edited_V[seen_V] > 0, edited_V[seen_V] / penalty, edited_V[seen_V] * penalty)
        if position >= self.num_prompt and (params.presence_penalty or params.frequency_penalty):
            counts_V = history.answer_counts(position)
            edited_V -= params.frequency_penalty * counts_V + params.presence_penalty * (counts_V > 0)
