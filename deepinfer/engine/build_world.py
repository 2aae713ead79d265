"""From a plan of several ranks to a running world on this machine, and to the driver that hands it requests."""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.engine.build import EngineGraph, build_graph, limits_of, sampler_of, tokenizer_of
from deepinfer.engine.build_grammar import build_grammar, why_no_grammar
from deepinfer.engine.build_seat import memory_of
from deepinfer.engine.executor_simulated import check_simulated
from deepinfer.engine.grammar_line import GrammarLine
from deepinfer.engine.unbuilt import is_simulated, refuse_unbuilt
from deepinfer.engine.world.children import ChildOrders, Children
from deepinfer.engine.world.fleet import Fleet
from deepinfer.engine.world.lines import Lines
from deepinfer.engine.world.rank_main import settings_of, shape_of
from deepinfer.engine.world.world import World, WorldLost
from deepinfer.parallel.channel import HERE, Listener
from deepinfer.parallel.rendezvous import RanksApart, judge, open_store

if TYPE_CHECKING:
    from torch.distributed import Store

    from deepinfer.engine.limits import EngineLimits
    from deepinfer.interfaces import SamplingParams
    from deepinfer.plan.types import Plan, RankPlan
    from deepinfer.sampling.tokenizer import BpeTokenizer


@dataclass(frozen=True, kw_only=True)
class FleetGraph:
    """The driver of a world. Its engine is used like `EngineGraph.engine`."""

    plan: Plan
    limits: EngineLimits  # of each of its engines
    num_engines: int
    tokenizer: BpeTokenizer | None
    engine: Fleet
    warm_up_s: float
    notices: tuple[str, ...] = ()


def build_engine(plan: Plan) -> EngineGraph | FleetGraph:
    """The engine of a plan: in this process where it has one rank, or is simulated; else in processes of its own."""
    if plan.layout.num_ranks == 1 or is_simulated(plan):
        return build_graph(plan)
    return build_fleet(plan, plan.layout.ranks)


def build_fleet(
    plan: Plan,
    ranks: Sequence[RankPlan],
    start: Callable[[], World] | None = None,
    tell: Callable[[str], None] = lambda doing: None,
    restarts_alone: int = 0,
) -> FleetGraph:
    """Start `ranks`, which are one replica of a role, as processes of this machine and wait until all are ready; or take the
    world that `start` gives, whose ranks somebody else started. `tell` hears what ranks are at whenever this one starts them;
    `restarts_alone`: how often the only rank of a plan is started again. Raises Refused with what keeps them from working."""
    refuse_unbuilt(plan)
    settings, shape, tokenizer = settings_of(plan), shape_of(plan, ranks[0].role), tokenizer_of(plan)
    leaders = [number for number, rank in enumerate(ranks) if rank.context == 0]
    memories = [memory_of(plan, ranks[leader]) for leader in leaders]
    limits = limits_of(plan, min(memories, key=lambda memory: memory.num_blocks))
    simulated, sampler = is_simulated(plan), sampler_of(structs.replace(limits, max_num_seqs=1), tokenizer)
    grammars = GrammarLine(None if simulated else build_grammar(plan, tokenizer), why_no_grammar(plan))

    def prepare(params: SamplingParams) -> None:
        if simulated:
            check_simulated(params)
        grammars.prepare(params)
        sampler.prepare(params)

    try:
        engine = Fleet(
            start or partial(start_world, plan, ranks, tell),
            limits,
            leaders=leaders,
            in_step=shape.in_step,
            restarts=0 if start is not None else restarts_alone if len(ranks) == 1 else _restarts(settings),
            prepare=prepare,
            on_close=grammars.close,
        )
    except WorldLost as lost:
        grammars.close()
        asked = f"parallel: {len(ranks)} ranks"
        raise Refused(lost.problems or [Problem(asked=asked, found=str(lost), code=ExitCode.OTHER)]) from lost
    return FleetGraph(
        plan=plan,
        limits=limits,
        num_engines=len(leaders),
        tokenizer=tokenizer,
        engine=engine,
        warm_up_s=engine.world.warm_up_s,
    )


def _restarts(settings: Mapping[str, float | int | str]) -> int:
    return int(settings["max_restarts"]) if settings["on_rank_loss"] == "requeue" else 0


def start_world(plan: Plan, ranks: Sequence[RankPlan], tell: Callable[[str], None] = lambda doing: None) -> World:
    """All ranks as children of this process, ready for requests. Raises WorldLost; nothing is left running or open then."""
    tell("starting")
    settings, secret = settings_of(plan), secrets.token_bytes(32)
    listener = Listener(HERE, secret)
    heartbeat_s, silence_s = float(settings["heartbeat_s"]), float(settings["silence_s"])
    lines = Lines(listener=listener, size=len(ranks), heartbeat_s=heartbeat_s, silence_s=silence_s)
    if len(ranks) == 1:
        return _alone(plan, ranks, lines, secret, tell)
    try:
        meeting = socket.create_server((HERE, 0))
        port = meeting.getsockname()[1]
        store = open_store(HERE, port, float(settings["join_timeout_s"]), host_it=True, listen_fd=meeting.detach())
        world = World(lines, Children(_orders(plan, ranks, port, listener.port, secret)))
    except RanksApart as error:
        lines.close()
        raise WorldLost(str(error)) from error
    except BaseException:
        lines.close()
        raise
    lines.open()
    return gathered(world, store, plan, ranks, where=f"{HERE}:{port}", tell=tell)


def _alone(plan: Plan, ranks: Sequence[RankPlan], lines: Lines, secret: bytes, tell: Callable[[str], None]) -> World:
    """The world of one rank: nobody to meet."""
    try:
        world = World(lines, Children(_orders(plan, ranks, 0, lines.listener.port, secret)))
    except BaseException:
        lines.close()
        raise
    lines.open()
    try:
        world.wait_ready(tell)
    except BaseException:
        world.close(0.0)
        raise
    return world


def _orders(plan: Plan, ranks: Sequence[RankPlan], store_port: int, line_port: int, secret: bytes) -> list[ChildOrders]:
    written = plan.to_json()
    return [
        ChildOrders(
            plan=written,
            number=number,
            rank=rank.rank,
            address=HERE,
            store_port=store_port,
            line_port=line_port,
            secret=secret,
        )
        for number, rank in enumerate(ranks)
    ]


def gathered(
    world: World,
    store: Store,
    plan: Plan,
    ranks: Sequence[RankPlan],
    *,
    where: str,
    tell: Callable[[str], None] = lambda doing: None,
) -> World:
    """The world once all its ranks are there, alike, and ready. Raises WorldLost; the world is closed then."""
    shared = {
        "version": sys.modules["deepinfer"].__version__,
        "rank_digest": plan.rank_digest,
        "numerics_digest": plan.numerics_digest,
    }
    timeout_s = float(settings_of(plan)["join_timeout_s"])
    world.keeps.append(store)

    def place(number: int) -> str:
        return f"device {ranks[number].device} of node {ranks[number].node}"

    try:
        judge(store, len(ranks), timeout_s, expected=shared, where=where, places=place, check=partial(world.next, 0.0))
        world.wait_ready(tell)
    except RanksApart as error:
        world.close()
        asked, fix = f"parallel: {len(ranks)} ranks", f"executor.join_timeout_s={2 * timeout_s:g}"
        problems = [
            Problem(asked=asked, found=fault.found, fix=fix, code=ExitCode.NETWORK)
            if fault.missing
            else Problem(asked=asked, found=fault.found, why="all ranks run one plan", code=ExitCode.PLAN)
            for fault in error.faults
        ]
        raise WorldLost(str(error), problems) from error
    except BaseException:
        world.close(0.0)
        raise
    return world
