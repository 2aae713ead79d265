"""What a load of a server says: conversations of one or more turns, drawn for sizes or read from a trace.

A trace is a file of JSON lines, one request each, with arrival times in one of two forms and sizes or texts:
    {"timestamp": 1500, "input_length": 900, "output_length": 60, "hash_ids": [1, 7]}   milliseconds; the public form of
        Mooncake's traces. Requests share the blocks of 512 tokens whose hash_ids they share.
    {"arrival_s": 1.5, "prompt_tokens": 900, "output_tokens": 60}
    {"arrival_s": 1.5, "prompt": "…", "output_tokens": 60}       or "messages": […], which goes to the chat endpoint
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

HASHED_TOKENS = 512  # of a block that a trace's hash_ids name
Messages = list[dict[str, Any]]


class Turn(Struct):
    """What is new in a turn: ids or a text after all that was said before; messages are a whole conversation."""

    new: list[int] | str | Messages
    output_tokens: int


class Talk(Struct):
    """Turns that follow one another, each on the answers before it."""

    turns: list[Turn]
    due_s: float | None = None  # when it begins, from the start of the load; None: as soon as there is room for it


class TurnSizes(Struct, frozen=True):
    """Tokens of a conversation: of its first prompt, and of what the user adds in each later turn."""

    first: int
    added: int
    output: int
    turns: int

    @property
    def longest(self) -> int:
        """Tokens of the last prompt with its answer."""
        return self.first + (self.turns - 1) * (self.added + self.output) + self.output


def turn_sizes(prompt_tokens: int, output_tokens: int, cached_share: float, turns: int) -> TurnSizes:
    """Sizes whose mean prompt is `prompt_tokens`, of which a share of `cached_share` was said before, as far as turns go.

    Raises ValueError where turns and answers alone are longer than that.
    """
    if turns == 1:
        return TurnSizes(prompt_tokens, 0, output_tokens, 1)
    added = max(1, round((1 - cached_share) * prompt_tokens))
    first = prompt_tokens - (turns - 1) * (added + output_tokens) // 2
    if first < 1:
        most = 1 + 2 * (prompt_tokens - 1) // (added + output_tokens)
        raise ValueError(
            f"{turns} turns that add {added:,} + {output_tokens:,} tokens each have prompts of more than "
            f"{prompt_tokens:,} tokens on average: at most {most} turns fit"
        )
    return TurnSizes(first, added, output_tokens, turns)


def drawn_talks(
    number: int, sizes: TurnSizes, vocab_size: int, rng: np.random.Generator, *, beginning: Sequence[int] = ()
) -> list[Talk]:
    """Conversations of random ids; all begin with `beginning`, a part of the first prompt."""

    def ids(count: int) -> list[int]:
        return rng.integers(0, vocab_size, count).tolist()

    return [
        Talk(
            [Turn([*beginning, *ids(sizes.first - len(beginning))], sizes.output)]
            + [Turn(ids(sizes.added), sizes.output) for _ in range(sizes.turns - 1)]
        )
        for _ in range(number)
    ]


def spread(talks: Sequence[Talk], rate: float, arrivals: str, rng: np.random.Generator) -> None:
    """Let them begin at `rate` a second: evenly (constant), or as a Poisson process; the first at once."""
    number = len(talks)
    gaps_s = np.full(number, 1 / rate) if arrivals == "constant" else rng.exponential(1 / rate, number)
    for talk, due_s in zip(talks, np.cumsum(gaps_s) - gaps_s[0]):
        talk.due_s = float(due_s)


class _Row(Struct, forbid_unknown_fields=False):
    timestamp: float | None = None
    arrival_s: float | None = None
    input_length: int | None = None
    prompt_tokens: int | None = None
    output_length: int | None = None
    output_tokens: int | None = None
    hash_ids: list[int] = []
    prompt: str | None = None
    messages: Messages | None = None


def read_trace(path: Path, most: int, room: int, vocab_size: int, seed: int) -> tuple[list[Talk], list[str]]:
    """The first `most` requests of a trace, cut to `room` tokens each, and what was cut. Raises ValueError, OSError."""
    talks, cut, start_s = [], 0, None
    with path.open("rb") as file:
        for number, line in enumerate(islice((line for line in file if line.strip()), most), start=1):
            try:
                row = msgspec.json.decode(line, type=_Row)
                talk, was_cut = _talk(row, room, vocab_size, seed)
            except (msgspec.DecodeError, ValueError) as error:
                raise ValueError(f"{path}, request {number}: {error}") from error
            if talk.due_s is not None:
                start_s = talk.due_s if start_s is None else start_s
                talk.due_s -= start_s
            talks.append(talk)
            cut += was_cut
    if not talks:
        raise ValueError(f"{path} holds no request")
    said = [f"{cut} of {len(talks)} requests of the trace are longer than {room:,} tokens and were cut"] if cut else []
    return talks, said


def _talk(row: _Row, room: int, vocab_size: int, seed: int) -> tuple[Talk, bool]:
    due_s = row.arrival_s if row.timestamp is None else row.timestamp / 1e3
    output = row.output_tokens if row.output_length is None else row.output_length
    if output is None or output < 1:
        raise ValueError("it needs output_tokens (or output_length), 1 at least")
    words = row.prompt if row.messages is None else row.messages
    if words is not None:
        return Talk([Turn(words, min(output, room))], due_s), output > room
    prompt = row.prompt_tokens if row.input_length is None else row.input_length
    if prompt is None or prompt < 1:
        raise ValueError("it needs prompt_tokens (or input_length), prompt or messages")
    answer = min(output, max(1, room // 2))
    length = min(prompt, room - answer)
    ids = np.concatenate([_block(name, vocab_size, seed) for name in _names(row, length)])[:length]
    return Talk([Turn(ids.tolist(), answer)], due_s), (length, answer) != (prompt, output)


def _names(row: _Row, length: int) -> list[object]:
    """What the blocks of a prompt are drawn from: the trace's own names as far as it has any, else the place in the file."""
    needed = -(-length // HASHED_TOKENS)
    names: list[object] = list(row.hash_ids[:needed])
    own = f"{row.timestamp} {row.arrival_s} {row.input_length} {row.prompt_tokens} {row.hash_ids}"
    return names + [f"{own} {number}" for number in range(len(names), needed)]


def _block(name: object, vocab_size: int, seed: int) -> np.ndarray:
    words = np.frombuffer(f"{seed} {name}".encode(), dtype=np.uint8)
    return np.random.default_rng(words).integers(0, vocab_size, HASHED_TOKENS)
