"""A rank's line to its driver: what comes in, and that no rank outlives its driver or its order to end."""

from __future__ import annotations

import re
import threading
import time

import pytest

from deepinfer.engine.world.lines import Lines
from deepinfer.engine.world.messages import Beat, Close, Closed, Hello, Notice, Poke, Ready, packed, read_at_driver
from deepinfer.engine.world.rank_line import DriverLost, RankLine
from deepinfer.engine.world.world import World, WorldLost
from deepinfer.parallel.channel import Listener, call

HERE, SECRET = "127.0.0.1", b"secret"


class Ends(list):
    """Exit codes with which a process would have ended."""

    def wait(self) -> list[int]:
        deadline_s = time.monotonic() + 120
        while not self and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return list(self)


def line_and_driver(**more):
    """A rank's line, and the driver's end of it."""
    listener, found = Listener(HERE, SECRET), []
    thread = threading.Thread(target=lambda: found.append(listener.greet(listener.wait(10.0))))
    thread.start()
    channel = call(HERE, listener.port, SECRET, 10.0)
    thread.join()
    listener.close()
    return RankLine(channel, **{"heartbeat_s": 0.02, "silence_s": 30.0, "grace_s": 0.05, **more}), found[0]


def news_of(driver, kind):
    while not isinstance(message := read_at_driver(driver.receive()), kind):
        assert isinstance(message, Beat)
    return message


def test_messages_come_in_order_and_signs_of_life_go_out():
    line, driver = line_and_driver(end=None)
    line.doing = lambda: "counting sheep"
    for wake in (1, 2):
        driver.send(packed(Poke(wake=wake)))
        driver.send(packed(Beat()))
    assert [line.next(10.0).wake for _ in range(2)] == [1, 2]
    assert line.next(0.0) is None
    while read_at_driver(driver.receive()) != Beat(doing="counting sheep"):
        pass
    line.send(Ready(warm_up_s=1.0, notices=["n"]))
    assert news_of(driver, Ready).notices == ["n"]
    line.close()


def test_what_is_no_message_is_told_and_the_line_goes_on():
    line, driver = line_and_driver(end=None)
    driver.send(b"\xc1 nonsense")
    driver.send(packed(Poke(wake=7)))
    (text,) = news_of(driver, Notice).texts
    assert text.startswith("a message of the driver was not taken: 10 bytes that are no message of this version")
    assert line.next(10.0).wake == 7
    line.close()


@pytest.mark.parametrize("how", ["driver ends", "driver says close"])
def test_a_rank_whose_main_thread_hangs_is_ended(how):
    ends = Ends()
    line, driver = line_and_driver(end=ends.append)
    if how == "driver ends":
        driver.close()
        with pytest.raises(DriverLost):
            line.next(10.0)
        with pytest.raises(DriverLost):
            line.next(10.0)
    else:
        driver.send(packed(Close(wake=1)))
    assert ends.wait() == [1]


def test_a_rank_that_ends_by_itself_is_left_alone():
    ends = Ends()
    line, driver = line_and_driver(end=ends.append, grace_s=0.2)
    driver.send(packed(Close(wake=1)))
    assert isinstance(line.next(10.0), Close)
    line.close()
    time.sleep(0.3)
    assert not ends


def test_a_silent_driver_is_given_up_by_name(capsys):
    ends = Ends()
    more = {"silence_s": 0.1, "name": "rank 1 (host b)", "driver": "its driver at 10.0.0.1"}
    line, driver = line_and_driver(end=ends.append, **more)
    assert ends.wait() == [1]
    line.close()
    driver.close()
    said = capsys.readouterr().err
    ending = r"its driver at 10\.0\.0\.1 was silent for [\d.]+ s; it was stopped, or its host or network is gone\n"
    assert re.fullmatch(rf"deepinfer: rank 1 \(host b\) ends: {ending}", said)


def test_closing_is_bounded_where_a_rank_does_not_answer():
    listener = Listener(HERE, SECRET)
    world = World(Lines(listener=listener, size=2, heartbeat_s=0.05, silence_s=30.0))
    world.lines.open()
    channels = [call(HERE, listener.port, SECRET, 10.0) for _ in range(2)]
    for rank, channel in enumerate(channels):
        channel.send(packed(Hello(rank=rank, host="h", pid=rank)))
        channel.send(packed(Ready(warm_up_s=0.5 * rank, notices=["the same"])))
    world.wait_ready()
    assert (world.warm_up_s, world.notices) == (0.5, ["the same"])
    channels[0].send(packed(Closed()))
    world.close(0.2)  # the other one never says so
    with pytest.raises(OSError):
        call(HERE, listener.port, SECRET, 1.0)


def test_a_rank_that_calls_twice_or_is_none_of_the_world_is_turned_away():
    listener = Listener(HERE, SECRET)
    world = World(Lines(listener=listener, size=2, heartbeat_s=0.05, silence_s=30.0), settle_s=0.1)
    world.lines.open()
    said = [0, 0, 5, 1]
    channels = [call(HERE, listener.port, SECRET, 10.0) for _ in said]
    for rank, channel in zip(said, channels):
        channel.send(packed(Hello(rank=rank, host=f"h{rank}", pid=rank)))
        channel.send(packed(Ready(warm_up_s=0.0, notices=[])))
        while rank == 0 and 0 not in world.lines.ranks:
            time.sleep(0.005)
    world.wait_ready()
    assert sorted(world.lines.ranks) == [0, 1]
    channels[-1].close()
    with pytest.raises(
        WorldLost, match=r"rank 1 \(host h1, pid 1\) ended without a word \(killed, or its host is gone\) while"
    ):
        while True:
            world.next(1.0)
    world.close()
