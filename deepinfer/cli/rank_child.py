"""`python -m deepinfer.cli.rank_child`: a rank that an LLM of several ranks started on its own machine. Not for typing.

What it is to do stands on its stdin, which the parent then holds open: when it closes, however the parent ended, this process
ends. (Linux could kill it with its parent, but would do so when the parent's *thread* ends.) Ctrl-C is the parent's to answer.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from deepinfer.engine.world.children import GRACE_S, ChildOrders, read_orders


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = read_orders(0)
    if orders is None:
        return 1
    threading.Thread(target=_watch, name="parent", daemon=True).start()
    return _run(orders)


def _run(orders: ChildOrders) -> int:
    from deepinfer.engine.world.messages import Fault, Hello
    from deepinfer.engine.world.rank_line import DriverLost, RankLine
    from deepinfer.engine.world.rank_main import RankPlace, run_alone, run_rank, settings_of, tell_end
    from deepinfer.parallel.channel import call
    from deepinfer.parallel.rendezvous import RanksApart, open_store
    from deepinfer.plan.types import Plan

    plan = Plan.from_json(orders.plan)
    settings = settings_of(plan)
    timeout_s, silence_s = float(settings["join_timeout_s"]), float(settings["silence_s"])
    try:
        channel = call(orders.address, orders.line_port, orders.secret, timeout_s, patience_s=silence_s)
    except OSError:
        return 1  # the parent has gone
    line = RankLine(channel, heartbeat_s=float(settings["heartbeat_s"]), silence_s=silence_s)
    try:
        line.send(Hello(rank=orders.number, host=socket.gethostname(), pid=os.getpid()))
        if not orders.store_port:
            return run_alone(plan, line)
        store = open_store(orders.address, orders.store_port, timeout_s, host_it=False)
    except DriverLost:
        return 1
    except RanksApart as error:
        return tell_end(line, Fault(why=str(error)))
    rank = plan.layout.ranks[orders.rank]
    return run_rank(RankPlace(plan=plan, rank=rank, number=orders.number, store=store, towards=orders.address), line)


def _watch() -> None:
    while os.read(0, 1):
        pass
    threading.Event().wait(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for nothing any more do not hold it
