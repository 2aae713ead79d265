"""A rank among several that a launcher started: rank 0 is the driver as well and does the task, the others work for it.

All of them meet in the store at MASTER_ADDR and MASTER_PORT, which torchrun's agent keeps, or rank 0 where there is none.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import torch.distributed as dist

from deepinfer.cli.serve_launched import serve_launched
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.build_world import FleetGraph, build_fleet, gathered
from deepinfer.engine.world.lines import Lines
from deepinfer.engine.world.messages import Hello
from deepinfer.engine.world.rank_line import RankLine
from deepinfer.engine.world.rank_main import RankPlace, run_rank, settings_of
from deepinfer.engine.world.world import World
from deepinfer.interfaces import SamplingParams
from deepinfer.parallel.channel import HERE, Listener, call
from deepinfer.parallel.rendezvous import RanksApart, is_loopback, open_store, put

if TYPE_CHECKING:
    from torch.distributed import Store

    from deepinfer.config.env import Foreign
    from deepinfer.plan.types import Plan, RankPlan

LINE = "line"  # key of the store: where the driver listens
MASTER_PORT = 29500  # torch's own, where nobody names one
ENDING_S = 10.0  # for the rank of the driver's own process


class LineAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where ranks call their driver."""

    address: str
    port: int
    secret: bytes


def take_part(plan: Plan, ranks: Sequence[RankPlan], place: Foreign) -> int:
    """Be rank `place.rank` of `ranks`, which are one world. Returns the exit code; raises Refused on the rank that speaks."""
    number, timeout_s = place.rank or 0, float(settings_of(plan)["join_timeout_s"])
    address, port = place.master_addr or HERE, place.master_port or MASTER_PORT
    hosts, again = number == 0 and not place.agent_store, "launch again with"  # plan.json is sealed
    later = f"{again} executor=distributed executor.join_timeout_s={2 * timeout_s:g}"
    fix = f"{again} launcher.master_port={port + 1}" if hosts else later  # another program may have the port
    try:
        store = open_store(address, port, timeout_s, host_it=hosts)
        fix = later
        mine = RankPlace(
            plan=plan, rank=ranks[number], number=number, store=store, towards=address, interface=place.gloo_interface
        )
        return _drive(mine, ranks, address, port) if number == 0 else _work(mine, timeout_s)
    except RanksApart as error:
        asked = f"rank {number} of {len(ranks)}"
        raise Refused(
            [Problem(asked=asked, found=fault.found, fix=fix, code=ExitCode.NETWORK) for fault in error.faults]
        ) from error


def _drive(mine: RankPlace, ranks: Sequence[RankPlan], address: str, port: int) -> int:
    settings, secret = settings_of(mine.plan), secrets.token_bytes(32)
    listener = Listener(HERE if is_loopback(address) else "", secret)
    heartbeat_s, silence_s = float(settings["heartbeat_s"]), float(settings["silence_s"])
    lines = Lines(listener=listener, size=len(ranks), heartbeat_s=heartbeat_s, silence_s=silence_s)
    lines.open()
    world = World(lines)
    try:
        told = LineAddress(address=address, port=listener.port, secret=secret)
        put(mine.store, LINE, msgspec.msgpack.encode(told))
        # a store of its own: one that waits keeps others out of the same connection
        beside = open_store(address, port, float(settings["join_timeout_s"]), host_it=False)
        args = replace(mine, store=beside), listener.port, secret
        own = threading.Thread(target=_work_here, args=args, name="rank-0", daemon=True)
        own.start()
        where = f"{address}:{port}"

        def start(tell: Callable[[str], None] = lambda doing: None) -> FleetGraph:
            gather = partial(gathered, world, mine.store, mine.plan, ranks, where=where, tell=tell)
            return build_fleet(mine.plan, ranks, gather)

        if mine.plan.task == "serve":
            code, lost = serve_launched(mine.plan, mine.rank.replica, start)
        else:
            code, lost = _demo(start())
    except BaseException:
        lines.close()
        raise
    if not lost:  # else it may hang in a collective
        own.join(ENDING_S)
    return code


def _demo(graph: FleetGraph) -> tuple[int, bool]:
    """Answer the shipped prompts: the exit code, and whether ranks were lost."""
    from deepinfer.api import LLM
    from deepinfer.cli.generate import demo

    with LLM.of_fleet(graph, asked=frozenset(SamplingParams.__struct_fields__)) as llm:
        code = demo(llm, thinking=False)
    return code, bool(graph.engine.lost)


def _work_here(mine: RankPlace, port: int, secret: bytes) -> None:
    """The rank of the driver's own process, in a thread of its own."""
    settings = settings_of(mine.plan)
    heartbeat_s, silence_s = float(settings["heartbeat_s"]), float(settings["silence_s"])
    line = RankLine(call(HERE, port, secret, ENDING_S), heartbeat_s=heartbeat_s, silence_s=silence_s, end=None)
    line.send(Hello(rank=mine.number, host=socket.gethostname(), pid=os.getpid()))
    run_rank(mine, line)


def _work(mine: RankPlace, timeout_s: float) -> int:
    settings = settings_of(mine.plan)
    where = _line_address(mine.store, timeout_s)
    try:
        channel = call(where.address, where.port, where.secret, timeout_s, patience_s=float(settings["silence_s"]))
    except OSError as error:
        found = f"its driver at {where.address}:{where.port} cannot be reached: {error.strerror or error}"
        problem = Problem(asked=f"rank {mine.number}", found=found, code=ExitCode.NETWORK)
        raise Refused([problem]) from error
    line = RankLine(
        channel,
        heartbeat_s=float(settings["heartbeat_s"]),
        silence_s=float(settings["silence_s"]),
        name=f"rank {mine.number} (host {socket.gethostname()})",
        driver=f"its driver at {where.address}",
    )
    line.send(Hello(rank=mine.number, host=socket.gethostname(), pid=os.getpid()))
    if mine.plan.task == "serve":  # launchers tell all ranks to stop at once; rank 0 drains, and then says so
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = run_rank(mine, line)
    line.close()
    sys.stderr.flush()
    return code


def _line_address(store: Store, timeout_s: float) -> LineAddress:
    try:
        store.wait([LINE], timedelta(seconds=timeout_s))
    except dist.DistError as error:
        found = f"rank 0 did not come within {timeout_s:g} s"
        raise Refused([Problem(asked="a rank", found=found, code=ExitCode.NETWORK)]) from error
    return msgspec.msgpack.decode(store.get(LINE), type=LineAddress)
