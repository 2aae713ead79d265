"""The choice of tokens from the logits of one forward pass. Rows are told apart by index, so nothing is copied to be judged.

T rows of logits · R of them asked for · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.kernels import cpu_philox
from deepinfer.sampling import philox
from deepinfer.sampling.candidates import RULED_OUT, Candidates, candidates_of
from deepinfer.sampling.logprobs import token_logprobs
from deepinfer.sampling.slot_params import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import TokenLogprobs
    from deepinfer.sampling.slot_params import SlotParams

_CACHED_ENTRIES = 1 << 16  # scores that are drawn from at a time: half a megabyte in float64


@dataclass(slots=True)
class Sampled:
    """One token for each of R rows."""

    token_ids: np.ndarray  # int64 [R]; -1 where failed
    failed: np.ndarray  # bool [R]
    failures: dict[int, str] = field(default_factory=dict)  # r → why
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # r → only where asked


@dataclass(slots=True)
class Distributions:
    """What the tokens of R rows are drawn from."""

    p_RV: np.ndarray  # float64; each row sums to 1, or is zero where failed
    failed: np.ndarray  # bool [R]
    failures: dict[int, str] = field(default_factory=dict)  # r → why


class Rows:
    """Logits [T, V], never written to. The best token of every row is found at once; the rest when a row is asked for."""

    def __init__(self, params: SlotParams, logits_TV: Any) -> None:
        self._params = params
        self.logits_TV = as_array(logits_TV)
        num_rows, vocab_size = self.logits_TV.shape
        assert vocab_size == params.vocab_size, f"rows of {vocab_size} logits, a vocabulary of {params.vocab_size}"
        self.best_T = self.logits_TV.argmax(axis=1)  # the first NaN, where there is one
        self.broken_T = ~np.isfinite(self.logits_TV[np.arange(num_rows), self.best_T])

    def sample(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray] | None = None,
        *,
        stream: int = philox.TARGET,
        logprobs: bool = True,
    ) -> Sampled:
        """One token for each of `rows` (int64 [R]), for the tokens at `positions` of `slots`.

        `masks` maps indices of `rows` to uint32 words of legal tokens. Rows of one slot must rise in position: each sees
        what the ones before it chose. A row with a NaN or +inf, or with every token ruled out, fails alone. `logprobs`
        False leaves log probabilities out even where a request wants them.
        """
        params, masks = self._params, masks or {}
        assert (positions >= params.num_prompt_N[slots]).all(), "rows inside a prompt are not sampled"
        sampled = Sampled(self.best_T[rows], self.broken_T[rows])
        sampled.failures = {int(r): fault(self.logits_TV[rows[r]]) for r in np.flatnonzero(sampled.failed)}
        single_R = params.edited_N[slots] | params.filtered_N[slots]
        if logprobs:
            single_R |= params.logprobs_N[slots] != NOT_ASKED
        single_R[list(masks)] = True
        plain = np.flatnonzero(~(params.greedy_N[slots] | single_R | sampled.failed))
        if len(plain):
            sampled.token_ids[plain] = self._draw(rows[plain], slots[plain], positions[plain], stream)
        for r in np.flatnonzero(single_R & ~sampled.failed).tolist():
            place = int(slots[r]), int(positions[r])
            found = candidates_of(params, self.logits_TV[rows[r]], *place, masks.get(r))
            if found is None:
                sampled.failed[r], sampled.failures[r] = True, RULED_OUT
                continue
            token_id = sampled.token_ids[r] = self._choose(found, *place, stream)
            params.write(*place, token_id)
            if logprobs and params.logprobs_N[place[0]] != NOT_ASKED:
                sampled.logprobs[r] = logprobs_of(params, found, place[0], token_id)
        sampled.token_ids[sampled.failed] = -1
        return sampled

    def distributions(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray] | None = None,
    ) -> Distributions:
        """What `sample` would draw from, for slots that are not greedy. Writes no history: rows are of different slots."""
        params, masks = self._params, masks or {}
        broken_R = self.broken_T[rows]
        found = Distributions(np.zeros((len(rows), params.vocab_size)), broken_R.copy())
        found.failures = {int(r): fault(self.logits_TV[rows[r]]) for r in np.flatnonzero(broken_R)}
        single_R = params.edited_N[slots] | params.filtered_N[slots]
        single_R[list(masks)] = True
        plain = np.flatnonzero(~(single_R | broken_R))
        scores = self.logits_TV[rows[plain]].astype(np.float64) / params.temperature_N[slots[plain], None]
        found.p_RV[plain] = _softmax(scores)
        for r in np.flatnonzero(single_R & ~broken_R).tolist():
            one = candidates_of(params, self.logits_TV[rows[r]], int(slots[r]), int(positions[r]), masks.get(r))
            if one is None:
                found.failed[r], found.failures[r] = True, RULED_OUT
            elif one.ids_K is None:
                found.p_RV[r] = _softmax(one.scores_V)
            else:
                found.p_RV[r, one.ids_K] = _softmax(one.scores_V[one.ids_K])
        return found

    def logprobs(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        positions: np.ndarray,
        masks: Mapping[int, np.ndarray],
        token_ids: np.ndarray,
    ) -> dict[int, TokenLogprobs]:
        """r → log probabilities of rows whose token was chosen elsewhere (-1: none), before it stands in the history."""
        wanted = (self._params.logprobs_N[slots] != NOT_ASKED) & (token_ids >= 0)
        found = {}
        for r in np.flatnonzero(wanted).tolist():
            slot = int(slots[r])
            one = candidates_of(self._params, self.logits_TV[rows[r]], slot, int(positions[r]), masks.get(r))
            assert one is not None, "a token was chosen where all are ruled out"
            found[r] = logprobs_of(self._params, one, slot, int(token_ids[r]))
        return found

    def _draw(self, rows: np.ndarray, slots: np.ndarray, positions: np.ndarray, stream: int) -> np.ndarray:
        """Rows with a temperature and nothing else, as many at a time as a core's cache holds."""
        params, token_ids = self._params, np.empty(len(rows), np.int64)
        size = max(1, _CACHED_ENTRIES // params.vocab_size)
        for start in range(0, len(rows), size):
            some = slice(start, start + size)
            noise = cpu_philox.uniform_of_all(params.seed_N[slots[some]], positions[some], params.vocab_size, stream)
            scores = np.divide(self.logits_TV[rows[some]], params.temperature_N[slots[some], None], dtype=np.float64)
            scores += philox.gumbel_of(noise)
            token_ids[some] = scores.argmax(axis=1)
        return token_ids

    def _choose(self, found: Candidates, slot: int, position: int, stream: int) -> int:
        if self._params.greedy_N[slot]:
            return int(found.scores_V.argmax())
        seed, at = self._params.seed_N[slot : slot + 1], np.array([position])
        if found.ids_K is None:
            noise = cpu_philox.uniform_of_all(seed, at, self._params.vocab_size, stream)
            return int((found.scores_V + philox.gumbel_of(noise[0])).argmax())
        noise = cpu_philox.uniform(seed, at, found.ids_K, stream)
        return int(found.ids_K[(found.scores_V[found.ids_K] + philox.gumbel_of(noise[0])).argmax()])


def _softmax(scores_XV: np.ndarray) -> np.ndarray:
    """Over the last axis. One entry at least is finite, none is NaN or +inf."""
    weights_XV = np.exp(scores_XV - scores_XV.max(axis=-1, keepdims=True))
    return weights_XV / weights_XV.sum(axis=-1, keepdims=True)


def logprobs_of(params: SlotParams, found: Candidates, slot: int, token_id: int) -> TokenLogprobs:
    """As the request in `slot` wants them for its answer."""
    return token_logprobs(found.logprobs_V(bool(params.processed_N[slot])), token_id, int(params.logprobs_N[slot]))


def as_array(logits: Any) -> np.ndarray:
    """A NumPy view of float32 or float64 logits; other floats are widened."""
    if isinstance(logits, np.ndarray):
        return logits
    if str(logits.dtype) not in ("torch.float32", "torch.float64"):
        logits = logits.float()
    return logits.numpy(force=True)


def fault(logits_V: np.ndarray) -> str:
    """What is wrong with a row that has no finite best entry."""
    if np.isnan(logits_V).any():
        return f"the logits of this position hold {np.count_nonzero(np.isnan(logits_V))} NaN"
    return "the logits of this position hold +inf" if logits_V.max() > 0 else "the logits of this position are all -inf"
