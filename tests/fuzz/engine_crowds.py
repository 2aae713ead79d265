"""Random options of an engine, and random crowds of requests for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from deepinfer.interfaces import SamplingParams
from deepinfer.structured import Choice, Regex

BLOCK, VOCABULARY, POISON = 128, 2000, 1999  # the poisoned token's embedding is NaN
SMALL = ("scheduler.max_num_seqs=3", "model.max_model_len=256")
DRAFTERS = {
    "nothing": (),
    "fixed": ("speculation=dspark_fixed", "speculation.back_off=false"),
    "some": ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false"),
    "ngram": ("speculation=ngram", "speculation.back_off=false"),
}
REPLAY = ("replay=compact", "replay.keep_tokens=40")


@dataclass(frozen=True)
class Drawn:
    """What a case switches on."""

    drafter: str
    ahead: bool
    prefix: bool
    tight: bool
    chunks: bool
    replay: bool
    stays: bool  # tokens are chosen in memory that stays, as a graph does
    planted: bool  # drafts are mostly right, where the device drafts

    @property
    def options(self) -> tuple[str, ...]:
        blocks = ("cache.num_blocks=4",) if self.tight else ("cache.num_blocks=60",) if self.prefix else ()
        return (
            *SMALL,
            *DRAFTERS[self.drafter],
            *(("scheduler.async_depth=1",) if self.ahead else ()),
            *(("cache=prefix", "cache.snapshot_every=1") if self.prefix else ()),
            *blocks,
            *(("scheduler.max_prefill_tokens=37",) if self.chunks else ()),
            *(REPLAY if self.replay else ()),
        )


def drawn(rng: np.random.Generator) -> Drawn:
    replay = bool(rng.random() < 0.2)
    return Drawn(
        drafter=str(rng.choice(list(DRAFTERS), p=[0.2, 0.35, 0.3, 0.15])),
        ahead=bool(rng.random() < 0.7),
        prefix=not replay and bool(rng.random() < 0.5),
        tight=bool(rng.random() < 0.4),
        chunks=bool(rng.random() < 0.5),
        replay=replay,
        stays=bool(rng.random() < 0.5),
        planted=bool(rng.random() < 0.5),
    )


@dataclass
class Asked:
    """A request, and what came of its answers."""

    prompt: np.ndarray
    params: SamplingParams
    priority: int = 0
    answers: list[Answer] = field(default_factory=list)


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt: list = field(default_factory=list)
    reason: str | None = None
    error: str | None = None


@cache
def head(number: int) -> np.ndarray:
    """What some prompts begin with, so that a later one finds it in the cache."""
    return np.random.default_rng(number).integers(3, VOCABULARY - 1, 2 * BLOCK)


def prompt(rng: np.random.Generator) -> np.ndarray:
    """Of one token, of a few, up to a block's border or beside it, or one that shares its head with others."""
    long = [rng.integers(BLOCK, 200), 2 * BLOCK - int(rng.integers(1, 9))]  # the last leaves room for a few tokens
    length = int(rng.choice([1, rng.integers(2, 40), BLOCK - 1, BLOCK, BLOCK + 1, *long]))
    shared = int(rng.choice([0, length, min(length, BLOCK)]))
    rest = rng.integers(3, VOCABULARY - 1, length - shared)
    return np.concatenate([head(int(rng.integers(2)))[:shared], rest])


def request(rng: np.random.Generator, replay: bool) -> Asked:
    def sometimes(share: float, value: Any, else_: Any) -> Any:
        return value if rng.random() < share else else_

    ids, temperature = prompt(rng), sometimes(0.7, float(rng.choice([0.6, 1.0, 1.4])), 0.0)
    asked = {
        "max_tokens": sometimes(0.15, 1, int(rng.integers(2, 13))),
        "temperature": temperature,
        "seed": int(rng.integers(2**40)),
        "n": sometimes(0.15, 2, 1),
        "ignore_eos": sometimes(0.7, True, False),
        "top_p": sometimes(0.3, 0.9, 1.0),
        "top_k": sometimes(0.3, int(rng.integers(1, 60)), 0),
        "min_p": sometimes(0.2, 0.05, 0.0),
        "repetition_penalty": sometimes(0.3, 1.3, 1.0),
        "presence_penalty": sometimes(0.2, 0.7, 0.0),
        "frequency_penalty": sometimes(0.2, -0.4, 0.0),
        "logprobs": sometimes(0.4, int(rng.integers(0, 4)), None),
        "logprobs_mode": sometimes(0.3, "processed", "raw"),
        "prompt_logprobs": None if replay else sometimes(0.2, int(rng.integers(0, 3)), None),
        "stop_token_ids": sometimes(0.3, tuple(range(3, VOCABULARY, 9)), ()),
        "bad_words": sometimes(0.15, ("a", "th", " the"), ()),
        "logit_bias": sometimes(0.15, {int(rng.integers(3, VOCABULARY - 1)): 4.0}, None),
    }
    room = min(asked["max_tokens"], 2 * BLOCK - len(ids))
    asked["min_tokens"] = sometimes(0.2, int(rng.integers(0, room + 1)), 0)
    fate = rng.random()
    if fate < 0.12:
        ids[-1] = POISON  # further back it spoils what is selected, which shows in no defined way
    elif fate < 0.2:
        asked["logit_bias"] = {POISON: 100.0}  # chosen first, and then read
        asked |= {"bad_words": (), "stop_token_ids": (), "n": 1}
    elif fate < 0.4:
        grammar = Regex("[a-z ]{4,}") if rng.random() < 0.6 else Choice(["yes", "no", "not at all", "never mind"])
        asked |= {"grammar": grammar, "bad_words": (), "min_tokens": 0, "ignore_eos": False}
    return Asked(ids, SamplingParams(**asked), int(rng.integers(3)))


def crowd(rng: np.random.Generator, what: Drawn) -> list[Asked]:
    """The first three need a second block at about the same time, which a tight cache has not for all of them; what the last
    begins with is in a cache of prefixes by then."""
    made = []
    for number, length in enumerate((112, 116, 120)):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=number, ignore_eos=True, logprobs=1)
        made.append(Asked(head(2 + number)[:length], params))
    first = Asked(head(0)[: BLOCK + 9], SamplingParams(max_tokens=3, temperature=0.0))
    last = Asked(np.concatenate([head(0)[:BLOCK], head(5)[:4]]), SamplingParams(max_tokens=3, seed=1, logprobs=2))
    return [*made, first, *(request(rng, what.replay) for _ in range(int(rng.integers(3, 7)))), last]
