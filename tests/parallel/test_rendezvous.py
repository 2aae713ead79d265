"""Ranks that meet, as threads around one store: all faults of all ranks at once, told to everybody."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace as replaced
from pathlib import Path

import msgspec
import pytest

from deepinfer.parallel.groups import WorldShape
from deepinfer.parallel.rendezvous import Arrival, RanksApart, arrive, hear_verdict, judge, open_store, put

HERE = "127.0.0.1"
SHARED = {"version": "1.0", "rank_digest": "aaaa", "numerics_digest": "bbbb"}


def arrival(rank: int, **changes) -> Arrival:
    whole = {"host": f"host-{rank}", "pid": 100 + rank, "address": f"10.0.0.{rank}", **SHARED, **changes}
    return Arrival(rank=rank, **whole)


def meet(size: int, arrivals: list[Arrival], timeout_s: float = 0.3):
    """What the judge found, and what every rank that came heard."""
    meeting = socket.create_server((HERE, 0))
    port = meeting.getsockname()[1]
    store = open_store(HERE, port, 5.0, host_it=True, listen_fd=meeting.detach())
    heard: dict[int, object] = {}

    def rank(mine: Arrival) -> None:
        own = open_store(HERE, port, 5.0, host_it=False)
        arrive(own, mine)
        try:
            hear_verdict(own, 5.0)
            heard[mine.rank] = None
        except RanksApart as error:
            heard[mine.rank] = error.faults

    threads = [threading.Thread(target=rank, args=(one,)) for one in arrivals]
    for thread in threads:
        thread.start()
    try:
        found = judge(
            store, size, timeout_s, expected=SHARED, where="the place", places=lambda rank: f"device {rank} of node 0"
        )
    except RanksApart as error:
        found = error.faults
    for thread in threads:
        thread.join()
    return found, heard


def test_ranks_that_are_all_there_and_alike_go_on():
    found, heard = meet(3, [arrival(rank) for rank in (2, 0, 1)], timeout_s=10.0)
    assert [one.host for one in found] == ["host-0", "host-1", "host-2"]
    assert heard == {0: None, 1: None, 2: None}


def test_everything_that_is_wrong_is_told_to_all_at_once():
    other = arrival(1, rank_digest="cccc", version="2.0", interface="eth7")
    found, heard = meet(4, [arrival(0), other])
    there = "there are rank 0 (host host-0, pid 100, address 10.0.0.0), "
    there += "rank 1 (host host-1, pid 101, address 10.0.0.1, interface eth7)"
    assert [(fault.missing, fault.found) for fault in found] == [
        (True, f"rank 2 of 4 (device 2 of node 0) did not come to the place within 0.3 s; {there}"),
        (True, f"rank 3 of 4 (device 3 of node 0) did not come to the place within 0.3 s; {there}"),
        (False, f"rank 1 ({other.place}) runs deepinfer 2.0, and this world 1.0"),
        (False, f"rank 1 ({other.place}) has the plan cccc, and this world aaaa"),
    ]
    assert heard == {0: found, 1: found}


def test_a_place_where_nobody_is_names_both_ends():
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RanksApart) as caught:
        open_store(HERE, port, 0.5, host_it=False)
    (fault,) = caught.value.faults
    assert fault.missing
    assert (
        f"{HERE}:{port} cannot be reached within 0.5 s from host {socket.gethostname()}, address {HERE}" in fault.found
    )


def test_an_arrival_survives_its_bytes():
    one = arrival(3, interface="eth0")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Arrival) == one


@pytest.mark.parametrize(
    ("shape", "in_step", "alone"),
    [
        (WorldShape(attention_dp=1, context=1, expert=1), False, True),
        (WorldShape(attention_dp=4, context=1, expert=1), False, True),
        (WorldShape(attention_dp=4, context=1, expert=1, tables=True), True, False),
        (WorldShape(attention_dp=2, context=1, expert=2), True, False),
        (WorldShape(attention_dp=1, context=2, expert=2, tables=True), False, False),
        (WorldShape(attention_dp=2, context=2, expert=2), False, False),
        (WorldShape(attention_dp=2, context=2, expert=4), True, False),
    ],
)
def test_who_runs_in_step_is_who_shares_across_leaders(shape, in_step, alone):
    assert (shape.in_step, shape.shares_nothing) == (in_step, alone)
    assert replaced(shape, moves=True).in_step == in_step


def listening_at(port: int) -> set[str]:
    """Addresses of this machine at which somebody listens at a port, as the kernel writes them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            place, state = line.split()[1], line.split()[3]
            if state == "0A" and int(place.rpartition(":")[2], 16) == port:
                found.add(place.rpartition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the kernel does not say who listens where")
def test_the_store_of_a_loopback_world_listens_there_alone():
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    store = open_store(HERE, port, 5.0, host_it=True)
    assert listening_at(port) == {"0100007F"}
    other = open_store(HERE, port, 5.0, host_it=False)
    put(other, "a", b"b")
    assert store.get("a") == b"b"


def test_a_port_that_another_one_has_is_told():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RanksApart, match=f"the meeting place {HERE}:{port} cannot be opened: .*already in use"):
            open_store(HERE, port, 5.0, host_it=True)
