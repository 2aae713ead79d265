"""Random rounds of verification: parameters, logits, drafts of which most are right, masks, faults.

S sequences · T rows · V vocabulary · K drafts.
"""

import copy
from dataclasses import dataclass

import msgspec
import numpy as np

from deepinfer.interfaces import SamplingParams, VerifyRows
from deepinfer.sampling.sampler import Sampler

V, EOS, DEPTH = 96, 7, 4
PIECES = [bytes([97 + i % 5]) * (1 + i // 40) + bytes([97 + i % 7]) for i in range(V)]  # "aa", "bb", …, "ab", "aae"
BAD = ("ab", "cdc", "eee", "bbab")


@dataclass
class Round:
    logits_TV: np.ndarray  # float32
    rows: VerifyRows
    num_short_masks: int


def random_seed(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def new_sampler(num_slots: int, vocab_size: int = V) -> Sampler:
    pieces = [PIECES[i % V] for i in range(vocab_size)]
    return Sampler(vocab_size, num_slots, eos_token_ids=[EOS], token_bytes=pieces)


def random_params(rng: np.random.Generator, vocab_size: int = V) -> SamplingParams:
    """Each feature in about half of the requests; three in ten edit nothing."""

    def maybe(value: float, off: float) -> float:
        return float(value) if rng.random() < 0.5 else off

    def either() -> bool:
        return bool(rng.random() < 0.5)

    found = SamplingParams(
        temperature=maybe(rng.uniform(0.2, 2), 0.0 if either() else 1.0),
        top_k=int(maybe(rng.integers(1, 20), 0)),
        top_p=maybe(rng.uniform(0.1, 1), 1.0),
        min_p=maybe(rng.uniform(0, 0.3), 0.0),
        logprobs=int(rng.integers(0, 12)) if either() else None,
        logprobs_mode="processed" if either() else "raw",
    )
    if rng.random() < 0.3:
        return found
    biased = rng.choice(vocab_size, 6, replace=False).tolist()
    return msgspec.structs.replace(
        found,
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        logit_bias={token: float(rng.uniform(-4, 4)) for token in biased} if either() else None,
        min_tokens=int(maybe(rng.integers(1, 8), 0)),
        stop_token_ids=(3, 5) if either() else (),
        bad_words=BAD if either() else (),
    )


def random_round(
    rng: np.random.Generator,
    sampler: Sampler,
    slots: np.ndarray,
    positions: np.ndarray,
    *,
    faults: float = 0.02,
    most_drafts: int = DEPTH,
) -> Round:
    """Drafts are mostly those that `sampler` will choose, which is left as it is."""
    num, size = len(slots), sampler.vocab_size
    num_drafts = rng.integers(0, most_drafts + 1, num)
    starts = np.concatenate([[0], np.cumsum(num_drafts + 1)])
    logits_TV = (rng.normal(size=(starts[-1], size)) * 3).astype(np.float32)
    logits_TV[::5] = np.round(logits_TV[::5])  # ties
    for row in np.flatnonzero(rng.random(len(logits_TV)) < faults).tolist():
        logits_TV[row, rng.integers(size, size=3)] = [np.nan, np.inf, np.nan][row % 3]
        if row % 4 == 3:
            logits_TV[row] = -np.inf
    masks = {r: _random_masks(rng, int(num_drafts[r]) + 1, size) for r in range(num) if rng.random() < 0.3}
    rows = VerifyRows(slots, positions, starts, rng.integers(0, size, (num, DEPTH)), masks)
    num_short = _mostly_right(rng, copy.deepcopy(sampler), logits_TV, rows)
    return Round(logits_TV, rows, num_short)


def _random_masks(rng: np.random.Generator, num_rows: int, size: int) -> np.ndarray:
    masks = rng.integers(0, 2**32, (num_rows, -(-size // 32)), dtype=np.uint32)
    masks[rng.random(num_rows) < 0.05] = 0
    return masks


def _mostly_right(rng: np.random.Generator, oracle: Sampler, logits_TV: np.ndarray, rows: VerifyRows) -> int:
    """Writes three drafts in four as they will be chosen; cuts masks behind drafts that they rule out, and counts these."""
    num_short, choice = 0, oracle.rows(logits_TV)
    for r, slot in enumerate(rows.slots.tolist()):
        for depth in range(int(rows.row_starts[r + 1] - rows.row_starts[r]) - 1):
            places = np.array([rows.row_starts[r] + depth]), np.array([slot]), rows.positions[r : r + 1] + depth
            mask = {0: rows.masks[r][depth]} if r in rows.masks else {}
            token = int(choice.sample(*places, mask).token_ids[0])
            if token < 0:
                break
            if rng.random() < 0.75:
                rows.drafts[r, depth] = token
                continue
            draft = int(rows.drafts[r, depth])
            if mask and not mask[0][draft >> 5] >> (draft & 31) & 1:
                rows.masks[r] = rows.masks[r][: depth + 1]
                num_short += 1
            break
    return num_short
