"""Starts of worlds that fail: a sentence for whoever waits, and nothing that stays open."""

from __future__ import annotations

import socket
import threading
from functools import partial

import pytest
from golden_engine import small_plan

from deepinfer.cli import rank_child
from deepinfer.config.errors import ExitCode
from deepinfer.engine import build_world
from deepinfer.engine.world.children import ChildOrders
from deepinfer.engine.world.messages import Beat, Close, Fault, Hello, packed, read_at_driver
from deepinfer.engine.world.rank_line import RankLine
from deepinfer.engine.world.world import WorldLost
from deepinfer.parallel.channel import HERE, Listener
from deepinfer.parallel.rendezvous import Fault as Apart
from deepinfer.parallel.rendezvous import RanksApart

PLAN = small_plan("model=v41_tiny", "parallel=dp2", "executor=distributed", "executor.join_timeout_s=1")


def free_port() -> int:
    with socket.create_server((HERE, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def test_a_child_that_does_not_find_the_store_says_so_in_a_sentence(capfd):
    listener, said, store_port = Listener(HERE, b"secret"), [], free_port()
    shared = {"address": HERE, "store_port": store_port, "line_port": listener.port, "secret": b"secret"}
    orders = ChildOrders(plan=PLAN.to_json(), number=1, rank=1, **shared)

    def driver() -> None:
        channel = listener.greet(listener.wait(20.0))
        while not said or not isinstance(said[-1], Fault):
            message = read_at_driver(channel.receive())
            said.extend([] if isinstance(message, Beat) else [message])
        channel.send(packed(Close(wake=1)))
        done.wait(20.0)
        channel.close()

    done, thread = threading.Event(), threading.Thread(target=driver)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepinfer.engine.world.rank_line.RankLine", partial(RankLine, end=None))
        assert rank_child._run(orders) == ExitCode.OTHER
    done.set()
    thread.join()
    listener.close()
    assert isinstance(said[0], Hello)
    assert f"the meeting place {HERE}:{store_port} cannot be reached within 1 s from host " in said[1].why
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("place", ["open_store", "Children"])
def test_a_start_that_fails_leaves_no_port_open(place, monkeypatch):
    listeners = []

    class Kept(Listener):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            listeners.append(self)

    def fails(*_, **__) -> None:
        if place == "open_store":
            raise RanksApart([Apart(found="the meeting place cannot be opened", missing=True)])
        raise OSError("no more processes")

    monkeypatch.setattr(build_world, "Listener", Kept)
    monkeypatch.setattr(build_world, place, fails)
    with pytest.raises(WorldLost if place == "open_store" else OSError, match=r"cannot be opened|no more processes"):
        build_world.start_world(PLAN, PLAN.layout.ranks)
    (listener,) = listeners
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, listener.port), timeout=1.0)
