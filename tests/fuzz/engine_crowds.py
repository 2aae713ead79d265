"""Random options of an engine, and random crowds of requests for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from deepinfer.interfaces import SamplingParams
from deepinfer.structured import Choice, Regex

BLOCK, LENGTH, VOCABULARY, POISON = 16, 96, 2000, 1999  # the poisoned token's embedding is NaN
KEPT = 40  # tokens, where prompts are cut for the later layers
SMALL = ("scheduler.max_num_seqs=3", f"model.max_model_len={LENGTH}")
DRAFTERS = {
    "nothing": (),
    "fixed": ("speculation=dspark_fixed", "speculation.back_off=false"),
    "some": ("speculation=dspark", "speculation.cost_curve=none", "speculation.back_off=false"),
    "ngram": ("speculation=ngram", "speculation.back_off=false"),
}
REPLAYS = ("none", "mask", "compact")
ON_HIT = ("snapshot", "exact")
SIZES = (
    (),
    (1,),
    (8, 40),
    (3, 33, 128),
    (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048),
)  # rows of steps with chunks


@dataclass(frozen=True)
class Drawn:
    """What a case switches on."""

    drafter: str
    ahead: bool
    prefix: str  # "", or what a hit begins from
    tight: bool
    most_rows: int  # of prompts beside answers
    most_batched: int  # rows of a step
    replay: str
    rejection: bool
    sizes: tuple[int, ...]  # to which steps with chunks are padded; none: they are launched piece by piece
    stays: bool  # tokens are chosen in memory that stays, as a graph does
    planted: bool  # drafts are mostly right, where the device drafts
    short: bool  # memory runs out now and then

    @property
    def bounded(self) -> tuple[str, ...]:
        return () if self.replay == "none" else (f"replay={self.replay}", f"replay.keep_tokens={KEPT}")

    @property
    def options(self) -> tuple[str, ...]:
        drafts = self.drafter != "nothing"
        return (
            *SMALL,
            *DRAFTERS[self.drafter],
            f"scheduler.async_depth={int(self.ahead)}",
            *(("cache=prefix", "cache.snapshot_every=1", f"replay.on_hit={self.prefix}") if self.prefix else ()),
            f"cache.num_blocks={LENGTH // BLOCK + 1 if self.tight else 60}",
            f"scheduler.max_num_batched_tokens={self.most_batched}",
            f"scheduler.max_prefill_tokens={min(self.most_rows, self.most_batched)}",
            *self.bounded,
            *(("speculation.verify=rejection",) if self.rejection and drafts else ()),
        )


def drawn(rng: np.random.Generator) -> Drawn:
    drafter = str(rng.choice(list(DRAFTERS), p=[0.2, 0.35, 0.3, 0.15]))
    return Drawn(
        drafter=drafter,
        ahead=bool(rng.random() < 0.7),
        prefix=str(rng.choice(["", *ON_HIT], p=[0.4, 0.45, 0.15])),
        tight=bool(rng.random() < 0.4),
        most_rows=int(rng.choice([1, 2, 7, 19, 37, 2048])),
        most_batched=max(int(rng.choice([3, 23, 50, 512, 2100])), 3 if drafter == "nothing" else 18),
        replay=str(rng.choice(REPLAYS, p=[0.7, 0.1, 0.2])),
        rejection=drafter != "nothing" and bool(rng.random() < 0.3),
        sizes=SIZES[rng.choice(len(SIZES), p=[0.25, 0.05, 0.25, 0.25, 0.2])],
        stays=bool(rng.random() < 0.5),
        planted=bool(rng.random() < 0.5),
        short=bool(rng.random() < 0.35),
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
    return np.random.default_rng(number).integers(3, VOCABULARY - 1, LENGTH)


def prompt(rng: np.random.Generator) -> np.ndarray:
    """Of one token, of a few, up to a block's border or beside it, or one that shares its head with others."""
    border = BLOCK * int(rng.integers(1, 4))
    long = [
        rng.integers(border, LENGTH - 20),
        LENGTH - int(rng.integers(1, 9)),
    ]  # the last leaves room for a few tokens
    length = int(rng.choice([1, rng.integers(2, 40), border - 1, border, border + 1, *long]))
    shared = int(rng.choice([0, length, min(length, border)]))
    rest = rng.integers(3, VOCABULARY - 1, length - shared)
    return np.concatenate([head(int(rng.integers(2)))[:shared], rest])


def request(rng: np.random.Generator, what: Drawn) -> Asked:
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
        "prompt_logprobs": None if what.bounded else sometimes(0.2, int(rng.integers(0, 3)), None),
        "stop_token_ids": sometimes(0.3, tuple(range(3, VOCABULARY, 9)), ()),
        "bad_words": sometimes(0.15, ("a", "th", " the"), ()),
        "logit_bias": sometimes(0.15, {int(rng.integers(3, VOCABULARY - 1)): 4.0}, None),
    }
    room = min(asked["max_tokens"], LENGTH - len(ids))
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
    """The first three need more blocks at about the same time, which a tight cache has not for all of them; what the last
    begins with is in a cache of prefixes by then. Rejection sampling changes the text, unless it is greedy."""
    made = []
    for number, length in enumerate((26, 28, 30)):
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=number, ignore_eos=True, logprobs=1)
        made.append(Asked(head(2 + number)[:length], params))
    begun = KEPT + 2 * BLOCK if what.bounded else 2 * BLOCK
    first = Asked(head(0)[: begun + 9], SamplingParams(max_tokens=3, temperature=0.0))
    last = Asked(np.concatenate([head(0)[:begun], head(5)[:4]]), SamplingParams(max_tokens=3, seed=1, logprobs=2))
    found = [*made, first, *(request(rng, what) for _ in range(int(rng.integers(1, 5)))), last]
    for one in found if what.rejection else ():
        one.params = replace(one.params, temperature=0.0)
    return found
