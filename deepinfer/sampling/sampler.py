"""The sampler: one row of logits and one slot's parameters in, one token out; a pure function of both and of the position.

Order: logit_bias → repetition, frequency, presence penalty → bad words → min_tokens → grammar mask → temperature → top-k →
top-p → min-p → argmax(scores + Gumbel noise). Greedy (temperature below 1e-5) stops before the temperature and takes the
argmax. Ties go to the lowest token id everywhere. Noise comes from Philox counters (seed, position, token id), so a row never
depends on its neighbours, its place in the batch, or how the position was reached.

repetition_penalty looks at prompt and answer (positive logits are divided, negative ones multiplied); presence and frequency
penalties look at the answer alone. Histories are kept here, keyed by position: sampling a position again replaces it.

Shapes: R rows · V vocabulary · N slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.interfaces import StepOutput, TokenLogprobs
from deepinfer.kernels import cpu_philox
from deepinfer.sampling import philox
from deepinfer.sampling.bad_words import BadWords, TokenBytes
from deepinfer.sampling.filters import survivors
from deepinfer.sampling.logprobs import log_softmax, token_logprobs
from deepinfer.sampling.params import GREEDY_BELOW, ParamsError
from deepinfer.sampling.slot_edits import SlotEdits, needs_edits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deepinfer.interfaces import Request, SampleInput, SamplingParams

_NONE = -1  # no logprobs asked
_WORD_LISTS = 64  # lists of bad words that are kept ready, those asked for last


class Sampler:
    """Slot-indexed sampling parameters, and the choice of tokens.

    `token_bytes` (one entry a token, empty for special tokens) is needed for bad_words only.

    Rows of one slot must rise in position within a call: each sees what the ones before it chose.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        eos_token_ids: Sequence[int] = (),
        token_bytes: Sequence[bytes] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.failures: dict[int, str] = {}  # why rows of the last `sample` failed
        self._eos_token_ids = tuple(eos_token_ids)
        self._bytes_of = token_bytes
        self._vocabulary: TokenBytes | None = None
        self._bad_words: dict[tuple[str, ...], BadWords] = {}
        self._ids_V = np.arange(vocab_size, dtype=np.uint64)
        self._temperature_N = np.ones(num_slots)
        self._top_k_N = np.zeros(num_slots, np.int64)
        self._top_p_N = np.ones(num_slots)
        self._min_p_N = np.zeros(num_slots)
        self._seed_N = np.zeros(num_slots, np.uint64)
        self._num_prompt_N = np.zeros(num_slots, np.int64)
        self._logprobs_N = np.full(num_slots, _NONE)
        self._prompt_logprobs_N = np.full(num_slots, _NONE)
        self._processed_N = np.zeros(num_slots, bool)
        self._filtered_N = np.zeros(num_slots, bool)
        self._edited_N = np.zeros(num_slots, bool)
        self._edits: list[SlotEdits | None] = [None] * num_slots
        self._prompts: list[np.ndarray | None] = [None] * num_slots

    def prepare(self, params: SamplingParams) -> None:
        """Build what these parameters need beyond numbers, when a request comes in, so that no step pays or fails for it.

        Parameters are taken as valid (see `params.validate`). Raises ParamsError where this sampler cannot serve them.
        """
        self._words_of(params)

    def admit(self, slot: int, request: Request) -> None:
        """`slot` now follows `request`, whose parameters went through `prepare`."""
        params = request.params
        self._temperature_N[slot] = params.temperature
        self._top_k_N[slot] = params.top_k
        self._top_p_N[slot] = params.top_p
        self._min_p_N[slot] = params.min_p
        self._seed_N[slot] = request.seed
        self._num_prompt_N[slot] = len(request.prompt_ids)
        self._logprobs_N[slot] = _NONE if params.logprobs is None else params.logprobs
        self._prompt_logprobs_N[slot] = _NONE if params.prompt_logprobs is None else params.prompt_logprobs
        self._processed_N[slot] = params.logprobs_mode == "processed"
        self._filtered_N[slot] = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self._prompts[slot] = np.asarray(request.prompt_ids, np.int64)
        self._edited_N[slot] = needs_edits(params)
        self._edits[slot] = None
        if self._edited_N[slot]:
            self._edits[slot] = SlotEdits(request, self.vocab_size, self._eos_token_ids, self._words_of(params))

    def release(self, slot: int) -> None:
        """Forget what `slot` held."""
        self._edits[slot] = None
        self._prompts[slot] = None
        self._edited_N[slot] = False

    def record(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """Tokens chosen elsewhere stand at `position` …: for a sequence that enters a slot with part of its answer."""
        edits = self._edits[slot]
        if edits is not None and edits.history is not None:
            for offset, token_id in enumerate(token_ids):
                edits.history.write(position + offset, int(token_id))

    def sample(
        self, logits_RV: Any, sample: SampleInput, allowed: Mapping[int, np.ndarray] | None = None
    ) -> StepOutput:
        """Choose one token for each row of `logits_RV` (a float tensor or array, never written to).

        `allowed` maps rows to bool [V] masks of a grammar. A row with a NaN or +inf, or with every token ruled out, fails
        alone: `failed[r]` is set, its token id is -1 and `failures[r]` says why.
        """
        logits_RV = _as_array(logits_RV)
        num_rows = len(sample.slots)
        assert logits_RV.shape == (num_rows, self.vocab_size), (
            f"{logits_RV.shape}, {num_rows} rows of {self.vocab_size}"
        )
        slots, positions, allowed = sample.slots, sample.positions, allowed or {}
        rows_R = np.arange(num_rows)
        token_ids = logits_RV.argmax(axis=1)  # the first NaN, where there is one
        failed = ~np.isfinite(logits_RV[rows_R, token_ids])
        self.failures = {int(r): _fault(logits_RV[r]) for r in np.flatnonzero(failed)}
        output = StepOutput(token_ids=token_ids, failed=failed)

        assert (positions >= self._num_prompt_N[slots]).all(), "rows inside a prompt are not sampled"
        single_R = self._edited_N[slots] | (self._logprobs_N[slots] != _NONE)
        single_R[list(allowed)] = True
        noisy_R = self._temperature_N[slots] >= GREEDY_BELOW
        single_R |= noisy_R & self._filtered_N[slots]
        self._draw_plain(np.flatnonzero(noisy_R & ~single_R & ~failed), logits_RV, sample, token_ids)
        for r in np.flatnonzero(single_R & ~failed):
            self._do_row(int(r), logits_RV[r], sample, allowed.get(int(r)), output)
        token_ids[failed] = -1
        return output

    def _draw_plain(self, rows: np.ndarray, logits_RV: np.ndarray, sample: SampleInput, token_ids: np.ndarray) -> None:
        """Rows with a temperature and nothing else, all at once."""
        if not len(rows):
            return
        slots = sample.slots[rows]
        noise = cpu_philox.uniform(self._seed_N[slots], sample.positions[rows], self._ids_V, philox.TARGET)
        scores = logits_RV[rows].astype(np.float64) / self._temperature_N[slots, None]
        token_ids[rows] = (scores + philox.gumbel_of(noise)).argmax(axis=1)

    def _do_row(
        self, r: int, logits_V: np.ndarray, sample: SampleInput, allowed_V: np.ndarray | None, output: StepOutput
    ) -> None:
        """One row with edits, filters, a mask or log probabilities."""
        slot, position = int(sample.slots[r]), int(sample.positions[r])
        edits = self._edits[slot]
        edited_V = logits_V if edits is None else edits.apply(logits_V, position)
        if allowed_V is not None:
            edited_V = np.where(allowed_V, edited_V, -np.inf)
        if not edited_V.max() > -np.inf:
            output.failed[r] = True
            self.failures[r] = "every token is ruled out by logit_bias, bad_words, min_tokens or the grammar together"
            return
        scores_V, ids_K = self._candidates(slot, edited_V)
        token_id = output.token_ids[r] = self._choose(slot, position, scores_V, ids_K)
        if edits is not None and edits.history is not None:
            edits.history.write(position, token_id)
        k = int(self._logprobs_N[slot])
        if k != _NONE:
            output.logprobs[r] = token_logprobs(self._logprobs(slot, logits_V, scores_V, ids_K), token_id, k)

    def prompt_logprobs(self, slot: int, positions: np.ndarray, logits_RV: Any) -> list[TokenLogprobs]:
        """Log probabilities of the prompt's own tokens at `positions` (1 … prompt tokens - 1), a row of logits for each.

        The row for position p is the one of the token at p - 1. A row with a NaN gives a NaN for its token and no others.
        """
        logits_RV = _as_array(logits_RV)
        edits, k, prompt_ids = self._edits[slot], int(self._prompt_logprobs_N[slot]), self._prompts[slot]
        assert prompt_ids is not None, f"slot {slot} is empty"
        found = []
        for position, logits_V in zip(positions, logits_RV):
            token_id = int(prompt_ids[position])
            if not np.isfinite(logits_V.max()):
                found.append(TokenLogprobs(np.array([token_id]), np.array([np.nan], np.float32), 0))
                continue
            edited_V = logits_V if edits is None else edits.apply(logits_V, int(position))
            scores_V, ids_K = self._candidates(slot, edited_V)
            found.append(token_logprobs(self._logprobs(slot, logits_V, scores_V, ids_K), token_id, k))
        return found

    def _words_of(self, params: SamplingParams) -> BadWords | None:
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

    def _candidates(self, slot: int, edited_V: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores after the temperature, and the ids that the filters leave (None: all)."""
        temperature = self._temperature_N[slot]
        if temperature < GREEDY_BELOW:
            return edited_V, None
        scores_V = edited_V.astype(np.float64) / temperature
        if not self._filtered_N[slot]:
            return scores_V, None
        return scores_V, survivors(scores_V, int(self._top_k_N[slot]), self._top_p_N[slot], self._min_p_N[slot])

    def _choose(self, slot: int, position: int, scores_V: np.ndarray, ids_K: np.ndarray | None) -> int:
        if self._temperature_N[slot] < GREEDY_BELOW:
            return int(scores_V.argmax())
        ids = self._ids_V if ids_K is None else ids_K
        scores = scores_V if ids_K is None else scores_V[ids_K]
        noise = cpu_philox.uniform(self._seed_N[slot : slot + 1], np.array([position]), ids, philox.TARGET)
        return int(ids[(scores + philox.gumbel_of(noise[0])).argmax()])

    def _logprobs(self, slot: int, logits_V: np.ndarray, scores_V: np.ndarray, ids_K: np.ndarray | None) -> np.ndarray:
        """float64 [V]: raw, or of the very distribution that was drawn from (of the edited logits where greedy)."""
        if not self._processed_N[slot]:
            return log_softmax(logits_V)
        if ids_K is not None:
            kept_V = np.full(self.vocab_size, -np.inf)
            kept_V[ids_K] = scores_V[ids_K]
            scores_V = kept_V
        return log_softmax(scores_V)


def _as_array(logits: Any) -> np.ndarray:
    """A NumPy view of float32 or float64 logits; other floats are widened."""
    if isinstance(logits, np.ndarray):
        return logits
    if str(logits.dtype) not in ("torch.float32", "torch.float64"):
        logits = logits.float()
    return logits.numpy(force=True)


def _fault(logits_V: np.ndarray) -> str:
    if np.isnan(logits_V).any():
        return f"the logits of this position hold {np.count_nonzero(np.isnan(logits_V))} NaN"
    return "the logits of this position hold +inf" if logits_V.max() > 0 else "the logits of this position are all -inf"
