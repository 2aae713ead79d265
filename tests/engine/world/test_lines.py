"""The driver's lines: a rank that does not read harms nobody else, and all that failed are named together."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

from deepinfer.engine.world.children import Children
from deepinfer.engine.world.lines import LineEnded, Lines
from deepinfer.engine.world.messages import Beat, Hello, Ready, Submit, packed, read_at_rank
from deepinfer.engine.world.world import World, WorldLost
from deepinfer.interfaces import SamplingParams
from deepinfer.parallel.channel import HERE, Channel, ChannelClosed, Listener, call

SECRET, PATIENCE_S = b"secret", 30.0


def world_of(size: int, silence_s: float, **more) -> tuple[World, list[Channel]]:
    """A world whose ranks have called, and the ranks' ends of their lines."""
    listener = Listener(HERE, SECRET)
    world = World(Lines(listener=listener, size=size, heartbeat_s=0.05, silence_s=silence_s), settle_s=0.1, **more)
    world.lines.open()
    channels = [call(HERE, listener.port, SECRET, 10.0) for _ in range(size)]
    for rank, channel in enumerate(channels):
        channel.send(packed(Hello(rank=rank, host=f"h{rank}", pid=rank)))
        channel.send(packed(Ready(warm_up_s=0.0, notices=[])))
    world.wait_ready()
    return world, channels


def wait_for(what) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("beats", [False, True], ids=["frozen", "deaf"])
def test_a_rank_that_reads_nothing_leaves_the_others_alone_and_is_named(beats):
    world, (frozen, healthy) = world_of(2, silence_s=3.0)  # the healthy one may lose the processor for a while
    over, heard = threading.Event(), []

    def live() -> None:
        """The healthy rank's signs of life, and where `beats` the other one's."""
        while not over.wait(0.02):
            for channel in (healthy, frozen) if beats else (healthy,):
                with suppress(ChannelClosed):
                    channel.send_if_free(packed(Beat(doing="resting")))

    def read() -> None:
        with suppress(ChannelClosed):
            while True:
                heard.append(read_at_rank(healthy.receive()))

    prompt = Submit(request_ids=[0], prompt_ids=np.zeros(1_000_000, np.int64), params=SamplingParams(), wake=1)
    large = threading.Thread(target=lambda: [world.send(0, prompt) for _ in range(8)])
    threads = [threading.Thread(target=run, daemon=True) for run in (live, read)]
    for thread in threads:
        thread.start()
    large.start()  # more than the sockets hold: it waits for one who takes nothing
    wait_for(lambda: world.lines.ranks[0].channel._sending.locked())
    before = len(heard)
    wait_for(lambda: len(heard) >= before + 4)
    assert large.is_alive(), "nobody waited for the deaf rank"
    deaf, silent = "took no message for 3 s", r"gave no sign of life for [\d.]+ s"
    how = deaf if beats else f"(?:{silent}|{deaf})"  # the frozen one is both, whichever is seen first
    with pytest.raises(WorldLost, match=rf"^rank 0 \(host h0, pid 0\) {how} while [a-z]+: it was stopped, or its host"):
        while True:
            world.next(1.0)
    large.join(PATIENCE_S)
    assert not large.is_alive()
    over.set()
    world.close()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_nobody_listens_once_all_ranks_have_called():
    world, channels = world_of(2, silence_s=30.0)

    def is_closed() -> bool:
        try:
            call(HERE, world.lines.listener.port, SECRET, 1.0)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False

    wait_for(is_closed)
    channels[1].send(packed(Ready(warm_up_s=3.0, notices=[])))
    assert world.next(PATIENCE_S) == (1, Ready(warm_up_s=3.0, notices=[]))
    world.close(0.1)


class Dead(Children):
    """Processes that have ended before they called, some later than others."""

    def __init__(self, looks: dict[int, int]) -> None:
        self.looks = looks  # rank → how often it still runs when somebody looks

    def ended(self, number: int) -> str | None:
        self.looks[number] = max(0, self.looks.get(number, 10**9) - 1)
        return None if self.looks[number] else "ended with exit code 9"

    def pids(self) -> list[int]:
        return [100, 101, 102, 103]

    def end(self, within_s: float) -> None:
        pass


def test_all_ranks_that_ended_before_they_called_are_named():
    lines = Lines(listener=Listener(HERE, SECRET), size=4, heartbeat_s=0.05, silence_s=30.0)
    world = World(lines, Dead({1: 1, 3: 1, 2: 3}), settle_s=0.2)
    told = "; ".join(f"rank {rank} (pid 10{rank}) ended with exit code 9 while starting" for rank in (1, 2, 3))
    with pytest.raises(WorldLost) as lost:
        world.next(0.0)
    assert str(lost.value) == told
    with pytest.raises(WorldLost) as again:
        world.check()
    assert again.value is lost.value
    world.close(0.0)


def test_who_is_found_silent_counts_as_silent_though_its_line_is_closed_then():
    world, channels = world_of(1, silence_s=0.2)
    first = world.lines.next(PATIENCE_S)
    assert first is not None
    rank, news = first
    assert (rank, type(news)) == (0, LineEnded)
    assert news.silent_s > 0.2
    assert world.lines.next(PATIENCE_S) == (0, LineEnded())
    assert channels[0].receive()
    world.close(0.0)
