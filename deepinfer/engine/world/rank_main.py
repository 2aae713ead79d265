"""The life of a rank: meet the others, load its part, work until the driver says Close; and say why where it ends early."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deepinfer.config.errors import ExitCode, Refused
from deepinfer.engine.build import build_follower, build_graph
from deepinfer.engine.build_balancer import moves_experts, saved_placement
from deepinfer.engine.build_seat import Seat, SharedCurve, memory_of
from deepinfer.engine.build_spread import spreads_tables
from deepinfer.engine.context_ranks import follow
from deepinfer.engine.executor_thread import ThreadedExecutor
from deepinfer.engine.world.messages import Beat, Close, Closed, Fault, Ready
from deepinfer.engine.world.rank_device import use_device
from deepinfer.engine.world.rank_line import DriverLost, RankLine
from deepinfer.engine.world.rank_loop import RankLoop
from deepinfer.parallel.groups import WorldShape, leave_groups, make_groups
from deepinfer.parallel.peers import PeerLost
from deepinfer.parallel.rendezvous import Arrival, RanksApart, address_towards, arrive, hear_verdict

if TYPE_CHECKING:
    from torch.distributed import Store

    from deepinfer.engine.build import EngineGraph
    from deepinfer.parallel.meeting import Met, Word
    from deepinfer.plan.types import Plan, RankPlan


ALONE: dict[str, float | int | str] = {
    "backend": "auto",
    "join_timeout_s": 60.0,
    "heartbeat_s": 2.0,
    "silence_s": 10.0,
    "on_rank_loss": "fail",
    "max_restarts": 0,
}


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Which rank this is, and where its world meets."""

    plan: Plan
    rank: RankPlan
    number: int  # of the world
    store: Store
    towards: str  # address of the meeting place
    interface: str = ""  # that this rank was told to take


def shape_of(plan: Plan, role_name: str) -> WorldShape:
    """How the ranks of one replica of a role share the model."""
    role = plan.layout.role(role_name)
    tables = spreads_tables(role) and bool(plan.model.config.engram_layer_ids)
    degrees = {"attention_dp": role.attention_dp, "context": role.context, "expert": role.expert}
    return WorldShape(**degrees, tables=tables, moves=moves_experts(plan))


def settings_of(plan: Plan) -> dict[str, float | int | str]:
    """The keys of executor=distributed; usual ones where one rank runs in a process of its own."""
    return ALONE | plan.node("executor").settings


def run_rank(place: RankPlace, line: RankLine) -> int:
    """Returns the exit code. What ends a rank early is told to the driver, and once on stderr where it is a fault of ours."""
    return _told(partial(_work, place, line), line)


def run_alone(plan: Plan, line: RankLine) -> int:
    """As `run_rank`, for the only rank of a plan: nobody to meet."""
    return _told(partial(_work_alone, plan, line), line)


def _told(work: Callable[[], None], line: RankLine) -> int:
    try:
        work()
        line.send(Closed())
        return ExitCode.OK
    except DriverLost:
        return ExitCode.OTHER
    except Refused as refused:
        return tell_end(line, Fault(why="it cannot start", problems=list(refused.problems)))
    except RanksApart as error:
        tell_end(line, Fault(why=str(error), by_peer=True))
        return ExitCode.NETWORK if all(fault.missing for fault in error.faults) else ExitCode.PLAN
    except PeerLost as error:
        return tell_end(line, Fault(why=str(error), by_peer=True))
    except KeyboardInterrupt:
        tell_end(line, Fault(why="it was told to end"))
        raise
    except BaseException as error:  # noqa: BLE001 - the outermost loop of a rank; the driver gets it
        traceback.print_exc()
        return tell_end(line, Fault(why=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__))


def tell_end(line: RankLine, fault: Fault) -> int:
    """Say why this rank ends, and wait until the driver has understood it. Returns the exit code."""
    try:
        line.send(Beat(doing=line.doing()))  # the last one may be old
        line.send(fault)
        while not isinstance(line.next(None), Close):  # the driver sorts out first who began
            pass
    except DriverLost:
        pass
    return ExitCode.OTHER


def _work(place: RankPlace, line: RankLine) -> None:
    plan, settings = place.plan, settings_of(place.plan)
    line.doing = lambda: "meeting the others"
    arrive(place.store, _arrival(place))
    hear_verdict(place.store, float(settings["join_timeout_s"]))
    shape = shape_of(plan, place.rank.role)
    backend = str(settings["backend"])
    use_device(plan.hardware.kind, place.rank)
    groups = make_groups(place.store, place.number, shape, kind=plan.hardware.kind, backend=backend)
    line.doing = lambda: "loading"
    seat = Seat(
        rank=place.rank,
        role=plan.layout.role(place.rank.role),
        memory=memory_of(plan, place.rank),
        shape=shape,
        groups=groups,
        curve=SharedCurve(place.store, measures=place.number == 0),
        saved=saved_placement(plan, plan.layout.role(place.rank.role)),
    )
    if seat.leads:
        _lead(build_graph(plan, seat=seat), line)
    else:
        _follow(plan, seat, line)
    leave_groups()


def _work_alone(plan: Plan, line: RankLine) -> None:
    line.doing = lambda: "loading"
    _lead(build_graph(plan, real_time=True), line)


def _lead(graph: EngineGraph, line: RankLine) -> None:
    line.send(Ready(warm_up_s=graph.warm_up_s, notices=list(graph.notices)))
    in_step, executor = graph.in_step, graph.executor
    if in_step is None:
        loop = RankLoop(graph.engine, line)
    else:

        def serve(word: Word) -> Met:
            call = partial(in_step.serve, word)
            met: Met = executor.ask(call) if isinstance(executor, ThreadedExecutor) else call()
            return met

        loop = RankLoop(graph.engine, line, serve, in_step, graph.balancer)
    line.doing = lambda: loop.doing
    loop.run()
    line.doing = lambda: "closing"
    graph.engine.close()
    if graph.balancer is not None:
        graph.balancer.close()


def _follow(plan: Plan, seat: Seat, line: RankLine) -> None:
    executor, balancer = build_follower(plan, seat)
    line.send(Ready(warm_up_s=0.0, notices=[]))
    line.doing = lambda: "following its leader"
    assert seat.groups.control is not None, "a follower has a leader"
    follow(executor, seat.groups.control, None if balancer is None else balancer.after_step)
    if balancer is not None:
        balancer.close()


def _arrival(place: RankPlace) -> Arrival:
    return Arrival(
        rank=place.number,
        version=sys.modules["deepinfer"].__version__,
        rank_digest=place.plan.rank_digest,
        numerics_digest=place.plan.numerics_digest,
        host=socket.gethostname(),
        pid=os.getpid(),
        address=address_towards(place.towards),
        interface=place.interface,
    )
