"""Ranks as processes that this one started: each is told on its stdin who it is, and ends when that closes.

So no child outlives its parent, however that ended, and nothing that is secret stands on a command line.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from deepinfer.config.env import for_child
from deepinfer.parallel.channel import exactly

MODULE = "deepinfer.cli.rank_child"
GRACE_S = 5.0  # from the end of whoever a rank works for, or its order to end, until its process is ended
ROOT = Path(__file__).parents[3]  # where the package lies, for children of a checkout that is not installed


class ChildOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told: MessagePack behind its length in 8 bytes."""

    plan: bytes  # JSON
    number: int  # of the rank in its world
    rank: int  # in the plan
    address: str
    store_port: int  # 0: the rank is alone, and meets nobody
    line_port: int
    secret: bytes


class Children:
    """Started at once; `ended` says how each ended, if it has."""

    def __init__(self, orders: Sequence[ChildOrders]) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        lines: list[IO[bytes]] = []
        self._forgotten = weakref.finalize(self, _let_go, lines)  # of children that nobody ended
        command, env = [sys.executable, "-m", MODULE], _environment()
        for _ in orders:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env)
            assert process.stdin is not None, "a pipe was asked for"
            self._processes.append(process)
            lines.append(process.stdin)
        for line, each in zip(lines, orders):
            data = msgspec.msgpack.encode(each)
            with suppress(BrokenPipeError):  # it has ended already; whoever waits for it says so
                line.write(len(data).to_bytes(8, "big") + data)
                line.flush()

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def ended(self, number: int) -> str | None:
        """How a child ended, None where it still runs."""
        code = self._processes[number].poll()
        if code is None:
            return None
        if code >= 0:
            return f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"was killed by signal {-code}"

    def end(self, within_s: float) -> None:
        """Wait for all to end by themselves, then end them."""
        deadline_s = time.monotonic() + within_s
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                process.kill()  # one that is stopped ends, too
        for process in self._processes:
            process.wait()
        self._forgotten()


def read_orders(stdin: int) -> ChildOrders | None:
    """What the parent said; None where it has ended before it said all. Raises msgspec.MsgspecError for anything else."""
    read = partial(os.read, stdin)
    length = int.from_bytes(exactly(read, 8), "big")
    data = exactly(read, length)
    return msgspec.msgpack.decode(data, type=ChildOrders) if data and len(data) == length else None


def _let_go(lines: Sequence[IO[bytes]]) -> None:
    """Children end when these close."""
    for line in lines:
        with suppress(OSError):
            line.close()


def _environment() -> dict[str, str]:
    """This process's own; connections between ranks of one machine stay on it."""
    own = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return for_child(str(ROOT), **{"GLOO_SOCKET_IFNAME": own[0]} if own else {})
