"""What a driver and its ranks say to each other, as MessagePack: typed, checked when it is read, never unpickled."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from deepinfer.config.errors import Problem
from deepinfer.engine.events import TokenEvent
from deepinfer.engine.request_checks import plain_value
from deepinfer.engine.stats import EngineStats
from deepinfer.interfaces import FinishReason, SamplingParams
from deepinfer.parallel.eplb.balancer import BalancerState

DTYPES = ("<i8", "<f4", "<f8", "<i4")  # of arrays that travel


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One message."""


class Submit(Message, frozen=True, kw_only=True):
    """Driver → leader: run a prompt. `request_ids` are the driver's, one for each of `params.n` answers; the seed is set."""

    request_ids: list[int]
    prompt_ids: np.ndarray  # int64 [prompt tokens]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    wake: int  # see Poke


class Poke(Message, frozen=True, kw_only=True):
    """Driver → everyone else of the world: something was submitted, so that ranks which share steps wake up. `wake` counts
    what was sent to the world; ranks go to sleep again when all have heard of the same `wake` and nobody has work."""

    wake: int


class Finish(Message, frozen=True, kw_only=True):
    """Driver → leader: end a request; no event tells of it."""

    request_id: int
    reason: FinishReason


class StatsAsk(Message, frozen=True, kw_only=True):
    number: int


class ExpertsAsk(Message, frozen=True, kw_only=True):
    """Driver → first leader: what the balancer of experts is at; `balance`: have it balance first (`at_once`: and move all
    experts before the next step), `path`: and save there."""

    number: int
    balance: bool = False
    at_once: bool = False
    path: str = ""
    wake: int


class Close(Message, frozen=True, kw_only=True):
    """Driver → everyone: end, all together. `wake` as of Poke."""

    wake: int


class Beat(Message, frozen=True, kw_only=True):
    """A sign of life. `doing` says what a rank is at."""

    doing: str = ""


class Hello(Message, frozen=True, kw_only=True):
    """Rank → driver: the first message on a line."""

    rank: int  # of the world
    host: str
    pid: int


class Ready(Message, frozen=True, kw_only=True):
    """Rank → driver: weights are loaded, requests may come."""

    warm_up_s: float
    notices: list[str]


class Events(Message, frozen=True, kw_only=True):
    """Leader → driver: what a step brought. Ids are the driver's."""

    events: list[TokenEvent]
    admitted: list[int]


class Stats(Message, frozen=True, kw_only=True):
    number: int  # of the StatsAsk
    stats: EngineStats


class Experts(Message, frozen=True, kw_only=True):
    """Leader → driver: the answer to an ExpertsAsk; `error` where it could not be done."""

    number: int
    state: BalancerState | None = None
    error: str = ""


class Notice(Message, frozen=True, kw_only=True):
    texts: list[str]


class Fault(Message, frozen=True, kw_only=True):
    """Rank → driver: this rank ends. `by_peer`: only because another one did. `problems` where a user can mend it."""

    why: str
    by_peer: bool = False
    problems: list[Problem] = []


class Closed(Message, frozen=True, kw_only=True):
    """Rank → driver: everything is freed, the process ends."""


ToRank = Submit | Poke | Finish | StatsAsk | ExpertsAsk | Close | Beat
ToDriver = Hello | Ready | Events | Stats | Experts | Notice | Fault | Closed | Beat


class MalformedMessage(ValueError):
    """Bytes that are no message of this version. Whoever got them goes on."""


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.str in DTYPES:
        return [value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str | int | float):  # of a class of its own
        return plain_value(value)
    raise TypeError(f"no message carries a {type(value).__name__}")


def _unpack_array(kind: type, value: Any) -> Any:
    if kind is not np.ndarray:
        raise TypeError(f"no message carries a {kind.__name__}")
    dtype, shape, data = msgspec.convert(value, tuple[str, list[int], bytes])
    if dtype not in DTYPES:
        raise ValueError(f"no array of {dtype!r} travels")
    return np.frombuffer(data, dtype).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_AT_RANK = msgspec.msgpack.Decoder(ToRank, dec_hook=_unpack_array)
_AT_DRIVER = msgspec.msgpack.Decoder(ToDriver, dec_hook=_unpack_array)


def packed(message: Message) -> bytes:
    """The message as bytes."""
    return _ENCODER.encode(message)


def checked(message: Message) -> Message:
    """The message, which a rank can read. Raises MalformedMessage: nobody would answer one that it cannot."""
    try:
        data = packed(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedMessage(f"no message to a rank carries it: {error}") from error
    read_at_rank(data)
    return message


def read_at_rank(data: bytes) -> ToRank:
    """Raises MalformedMessage."""
    return _read(_AT_RANK, data)


def read_at_driver(data: bytes) -> ToDriver:
    """Raises MalformedMessage."""
    return _read(_AT_DRIVER, data)


def _read(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MalformedMessage(f"{len(data):,} bytes that are no message of this version: {what}") from error
