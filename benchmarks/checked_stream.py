"""A stream of the simulated executor, checked while it comes: every token is a fixed function of the request's seed, the
position and the two tokens before."""

import time

import msgspec

from deepinfer.cli.bench_http import Events
from deepinfer.engine.executor_simulated import _FACTORS

MASK = (1 << 64) - 1
FACTOR, NEWEST, OLDER = (int(factor) for factor in _FACTORS)
VOCABULARY = 3584


class _Choice(msgspec.Struct):
    token_ids: list[int] = []
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: dict | None = None


DECODER = msgspec.json.Decoder(_Chunk)


def following(key: int, position: int, newest: int, older: int) -> int:
    """The token of the simulated executor at a position, after two tokens."""
    mixed = ((key + position) * FACTOR + newest * NEWEST + older * OLDER) & MASK
    return (mixed ^ (mixed >> 29)) % VOCABULARY


class Stream:
    """One request: checks its tokens while they come, and keeps when."""

    def __init__(self, seed: int, prompt: list[int], tokens: int) -> None:
        self.seed, self.prompt, self.asked = seed, prompt, tokens
        self.position, self.newest, self.older = len(prompt), prompt[-1], prompt[-2]
        self.got = self.wrong = 0
        self.times: list[tuple[float, int]] = []  # when, and how many tokens
        self.reason = self.error = ""
        self.done = False
        self._events = Events()

    def push(self, data: bytes) -> None:
        now = time.perf_counter()
        for payload in self._events.push(data):
            if payload == b"[DONE]":
                self.done = True
                continue
            chunk = DECODER.decode(payload)
            if chunk.error:
                self.error = str(chunk.error)
            for choice in chunk.choices:
                self._take(choice, now)

    def _take(self, choice: _Choice, now: float) -> None:
        for token in choice.token_ids:
            expected = following(self.seed, self.position, self.newest, self.older)
            self.wrong += token != expected
            self.older, self.newest = self.newest, token
            self.position += 1
        if choice.token_ids:
            self.got += len(choice.token_ids)
            self.times.append((now, len(choice.token_ids)))
        self.reason = choice.finish_reason or self.reason

    @property
    def broken(self) -> bool:
        return not self.done or bool(self.error) or self.reason != "length"
