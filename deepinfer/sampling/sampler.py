"""The sampler: one row of logits and one slot's parameters in, one token out; a pure function of both and of the position.

Order: logit_bias → repetition, frequency, presence penalty → bad words → min_tokens → grammar mask → temperature → top-k →
top-p → min-p → argmax(scores + Gumbel noise). Greedy (temperature below 1e-5) stops before the temperature and takes the
argmax. Ties go to the lowest token id everywhere. Noise comes from Philox counters (seed, position, token id), so a row never
depends on its neighbours, its place in the batch, or how the position was reached.

repetition_penalty looks at prompt and answer (positive logits are divided, negative ones multiplied); presence and frequency
penalties look at the answer alone. Histories are kept here, keyed by position: sampling a position again replaces it. Drafts
are written ahead, as what the ones after them see; verification writes over them.

Shapes: R rows · S sequences · V vocabulary · N slots · W words of a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.interfaces import TokenLogprobs
from deepinfer.kernels import cpu_philox
from deepinfer.sampling import philox
from deepinfer.sampling.candidates import candidates_of
from deepinfer.sampling.logprobs import token_logprobs
from deepinfer.sampling.rows import Rows, Sampled, as_array
from deepinfer.sampling.slot_params import SlotParams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deepinfer.interfaces import Request, SamplingParams


class Sampler:
    """Slot-indexed sampling parameters, and the choice of tokens.

    `token_bytes` (one entry a token, empty for special tokens) is needed for bad_words only.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        eos_token_ids: Sequence[int] = (),
        token_bytes: Sequence[bytes] | None = None,
    ) -> None:
        self.vocab_size, self.num_slots = vocab_size, num_slots
        self._params = SlotParams(vocab_size, num_slots, eos_token_ids, token_bytes)

    @property
    def params(self) -> SlotParams:
        """What is known of the slots, for whoever samples their rows elsewhere."""
        return self._params

    def prepare(self, params: SamplingParams) -> None:
        """Build what these parameters need beyond numbers, when a request comes in, so that no step pays or fails for it.

        Parameters are taken as valid (see `params.validate`). Raises ParamsError where this sampler cannot serve them.
        """
        self._params.words_of(params)

    def admit(self, slot: int, request: Request) -> None:
        """`slot` now follows `request`, whose parameters went through `prepare`."""
        self._params.admit(slot, request)

    def release(self, slot: int) -> None:
        """Forget what `slot` held."""
        self._params.release(slot)

    def record(self, slot: int, position: int, token_ids: Sequence[int]) -> None:
        """Tokens chosen elsewhere stand at `position` …, and nothing after them."""
        for offset, token_id in enumerate(token_ids):
            self._params.write(slot, position + offset, int(token_id))

    def rows(self, logits_TV: Any) -> Rows:
        """The logits of a forward pass (a float tensor or array [T, V]), ready to choose tokens from."""
        return Rows(self._params, logits_TV)

    def temperatures(self, slots: np.ndarray) -> np.ndarray:
        """float64 [S]: at which temperature slots are served; 0 where greedy."""
        return np.where(self._params.greedy_N[slots], 0.0, self._params.temperature_N[slots])

    def greedy(self, slots: np.ndarray) -> np.ndarray:
        """bool [R]: whether these slots take the best token, without any noise."""
        return self._params.greedy_N[slots]

    def coins(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Uniforms in (0, 1), float64 [R], that decide whether the draft at a position is accepted."""
        return philox.uniform(self._params.seed_N[slots], positions, np.zeros(1, np.uint64), philox.ACCEPT)

    def draft_noise(self, slots: np.ndarray, positions: np.ndarray, number: int) -> np.ndarray:
        """Gumbel noise, float64 [R, V], for drafts that do not share the target's.

        A position may be drafted in several rounds, each time by a draft of another number: the number is in the counter
        beside the stream, so that a draft knows nothing of those that were thrown away.
        """
        return self._noise(slots, positions, philox.DRAFT | number << philox.STREAM_BITS)

    def residual_noise(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Gumbel noise, float64 [R, V], for the token in a rejected draft's place."""
        return self._noise(slots, positions, philox.RESIDUAL)

    def _noise(self, slots: np.ndarray, positions: np.ndarray, stream: int) -> np.ndarray:
        seeds = self._params.seed_N[slots]
        return philox.gumbel_of(cpu_philox.uniform_of_all(seeds, positions, self.vocab_size, stream))

    def sample(
        self,
        logits_RV: Any,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray] | None = None,
    ) -> Sampled:
        """One token for each row of `logits_RV`, without any drafts; see `Rows.sample`. `masks`: row → uint32 [W]."""
        assert len(logits_RV) == len(slots) == len(positions), f"{len(logits_RV)} rows, {len(slots)} slots"
        return self.rows(logits_RV).sample(np.arange(len(slots)), slots, positions, masks)

    def prompt_logprobs(self, slot: int, positions: np.ndarray, logits_RV: Any) -> list[TokenLogprobs]:
        """Log probabilities of the prompt's own tokens at `positions` (1 … prompt tokens - 1), a row of logits for each.

        The row for position p is the one of the token at p - 1. A row with a NaN gives a NaN for its token and no others.
        """
        params, prompt_ids = self._params, self._params.prompts[slot]
        assert prompt_ids is not None, f"slot {slot} is empty"
        found = []
        for position, logits_V in zip(positions, as_array(logits_RV)):
            token_id = int(prompt_ids[position])
            candidates = None
            if np.isfinite(logits_V.max()):
                candidates = candidates_of(params, logits_V, slot, int(position))
            if candidates is None:
                found.append(TokenLogprobs(np.array([token_id]), np.array([np.nan], np.float32), 0))
                continue
            logprobs_V = candidates.logprobs_V(bool(params.processed_N[slot]))
            found.append(token_logprobs(logprobs_V, token_id, int(params.prompt_logprobs_N[slot])))
        return found
