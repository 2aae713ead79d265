"""How the ranks of a world meet: everybody writes who it is into a store of torch.distributed, one looks at all, everybody
reads what it found.

Ranks that differ in version, plan or numerics would give wrong answers or hang, so they are refused before anything is loaded.
Only bytes go through the store.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore

PREFIX = "deepinfer"  # torchrun's agents keep keys of their own in the same store
VERDICT = "verdict"
POLL_S = 0.05
KNOCK_S = 0.2
SHOWN = 4  # ranks that are told to be there
SPARE_S = 15.0  # that ranks wait for the verdict beyond the time that missing ranks have


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """Who a rank is. `address` is the one it calls from, `interface` the network interface that it was told to take."""

    rank: int  # of the world
    version: str  # of deepinfer
    rank_digest: str
    numerics_digest: str
    host: str
    pid: int
    address: str
    interface: str = ""

    @property
    def place(self) -> str:
        via = f", interface {self.interface}" if self.interface else ""
        return f"host {self.host}, pid {self.pid}, address {self.address}{via}"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps the ranks apart. `missing`: somebody did not come; else somebody differs."""

    found: str
    missing: bool


class RanksApart(RuntimeError):
    """The ranks did not come together: all that was found, each a sentence."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault.found for fault in faults))


def open_store(address: str, port: int, timeout_s: float, *, host_it: bool, listen_fd: int | None = None) -> Store:
    """The store of a world at `address`:`port`; `host_it` in the one process that keeps it, at the socket `listen_fd` if given.

    A store holds secrets, so one at a loopback address listens there alone; at any other, whoever reaches the port is
    trusted. Raises RanksApart where it cannot be reached within `timeout_s`.
    """
    try:
        if host_it and listen_fd is None and is_loopback(address):
            listen_fd = _own_socket(address, port)  # torch would listen at all addresses
        more: dict[str, Any] = {} if listen_fd is None else {"master_listen_fd": listen_fd}
        if not host_it:
            _knock(address, port, timeout_s)  # torch would tell of every try at length
        patience = timedelta(seconds=timeout_s)
        store = TCPStore(address, port, None, host_it, patience, wait_for_workers=False, use_libuv=True, **more)
    except (dist.DistError, ValueError, OSError) as error:
        why = str(getattr(error, "strerror", None) or error).splitlines()[0].rstrip(".")
        what = "cannot be opened" if host_it else f"cannot be reached within {timeout_s:g} s"
        mine = "" if host_it else f" from host {socket.gethostname()}, address {address_towards(address)}"
        raise RanksApart(
            [Fault(found=f"the meeting place {address}:{port} {what}{mine}: {why}", missing=True)]
        ) from error
    return PrefixStore(PREFIX, store)


def _knock(address: str, port: int, timeout_s: float) -> None:
    """Until somebody listens there. Raises OSError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = max(POLL_S, deadline_s - time.monotonic())
        try:
            socket.create_connection((address, port), timeout=left_s).close()
            return
        except OSError:
            if time.monotonic() + KNOCK_S > deadline_s:
                raise
        time.sleep(KNOCK_S)


def is_loopback(address: str) -> bool:
    """Whether an address means this machine to itself only."""
    return address == "localhost" or address.startswith("127.") or address == "::1"


def _own_socket(address: str, port: int) -> int:
    """A descriptor of a socket that listens at one address. Raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(where[:2], family=family, backlog=1024).detach()


def put(store: Store, key: str, value: bytes) -> None:
    """Set a key to bytes, which a store takes though it is declared to take text."""
    store.set(key, value)  # type: ignore[arg-type]


def address_towards(address: str) -> str:
    """This machine's own address on the way to another one; "unknown" where there is no way."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # datagrams: nothing is sent
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return "unknown"


def arrive(store: Store, mine: Arrival) -> None:
    """Say who this rank is."""
    put(store, _key(mine.rank), msgspec.msgpack.encode(mine))


def hear_verdict(store: Store, timeout_s: float) -> None:
    """Wait until all ranks were looked at. Raises RanksApart with what was found, or where nobody says anything."""
    try:
        store.wait([VERDICT], timedelta(seconds=timeout_s + SPARE_S))
        faults = msgspec.msgpack.decode(store.get(VERDICT), type=list[Fault])
    except dist.DistError as error:
        found = (
            f"nobody said within {timeout_s + SPARE_S:g} s whether all ranks are there: {str(error).splitlines()[0]}"
        )
        raise RanksApart([Fault(found=found, missing=True)]) from error
    if faults:
        raise RanksApart(faults)


def judge(
    store: Store,
    size: int,
    timeout_s: float,
    *,
    expected: Mapping[str, str],
    where: str,
    places: Callable[[int], str] = lambda rank: "",
    check: Callable[[], object] = lambda: None,
) -> list[Arrival]:
    """Wait for all ranks, look at them, tell all of them what was found. Returns them by rank.

    `expected` holds what they share: version, rank_digest, numerics_digest. `where` is what they were to come to, `places`
    says where a rank ought to run, and `check` is called while waiting and raises where waiting has become useless. Raises
    RanksApart.
    """
    arrivals = _awaited(store, size, timeout_s, check)
    faults = [*_missing(size, arrivals, timeout_s, where, places), *_differing(arrivals, expected)]
    put(store, VERDICT, msgspec.msgpack.encode(faults))
    if faults:
        raise RanksApart(faults)
    return [arrivals[rank] for rank in range(size)]


def _key(rank: int) -> str:
    return f"rank/{rank}"


def _awaited(store: Store, size: int, timeout_s: float, check: Callable[[], object]) -> dict[int, Arrival]:
    arrivals: dict[int, Arrival] = {}
    deadline_s = time.monotonic() + timeout_s
    while len(arrivals) < size:
        for rank in range(size):
            if rank not in arrivals and store.check([_key(rank)]):
                arrivals[rank] = msgspec.msgpack.decode(store.get(_key(rank)), type=Arrival)
        if len(arrivals) == size or time.monotonic() > deadline_s:
            break
        check()
        time.sleep(POLL_S)
    return arrivals


def _missing(
    size: int, arrivals: Mapping[int, Arrival], timeout_s: float, where: str, places: Callable[[int], str]
) -> list[Fault]:
    there = (
        ", ".join(f"rank {rank} ({arrival.place})" for rank, arrival in sorted(arrivals.items())[:SHOWN]) or "nobody"
    )
    if len(arrivals) > SHOWN:
        there += f" and {len(arrivals) - SHOWN} more"
    late = f"did not come to {where} within {timeout_s:g} s; there are {there}"
    absent = [rank for rank in range(size) if rank not in arrivals]
    return [Fault(found=f"rank {rank} of {size}{_in_brackets(places(rank))} {late}", missing=True) for rank in absent]


def _differing(arrivals: Mapping[int, Arrival], expected: Mapping[str, str]) -> list[Fault]:
    names = {"version": "runs deepinfer", "rank_digest": "has the plan", "numerics_digest": "has the numerics"}
    return [
        Fault(found=f"rank {rank} ({arrival.place}) {names[key]} {found}, and this world {wanted}", missing=False)
        for rank, arrival in sorted(arrivals.items())
        for key, wanted in expected.items()
        if (found := getattr(arrival, key)) != wanted
    ]


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
