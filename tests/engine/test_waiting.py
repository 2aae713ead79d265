"""The waiting line: order, leaving early, memory."""

import numpy as np

from deepinfer.engine.waiting import Entry, WaitingLine
from deepinfer.interfaces import Request, SamplingParams


def entry(arrival: int, priority: int = 0) -> Entry:
    request = Request(arrival, np.array([1]), SamplingParams(), seed=0, priority=priority)
    return Entry(request=request, arrival=arrival, length_end=2, stop_ids=[])


def test_priority_then_arrival() -> None:
    line = WaitingLine()
    for arrival, priority in ((0, 0), (1, 2), (2, 0), (3, 2), (4, -1)):
        line.push(entry(arrival, priority))
    assert [line.pop().arrival for _ in range(len(line))] == [1, 3, 0, 2, 4]
    assert line.first() is None and len(line) == 0


def test_one_that_returns_has_its_old_place() -> None:
    line = WaitingLine()
    first, second = entry(0), entry(1)
    line.push(first)
    line.push(second)
    assert line.pop() is first and not first.waiting
    line.push(first)
    assert line.pop() is first and line.pop() is second


def test_without_a_free_slot_who_has_one_is_next_and_keeps_its_place() -> None:
    line = WaitingLine()
    head, *others = (entry(arrival, priority) for arrival, priority in ((9, 1), (1, 0), (2, 0), (3, 0)))
    for one in (head, *others):
        line.push(one)
    others[1].slot = others[2].slot = 7
    assert line.next(slots_free=1) is head and line.next(slots_free=0) is others[1]
    for _ in range(3):
        line.take(others[1])
        assert not others[1].waiting and len(line) == 3 and line.next(slots_free=0) is others[2]
        line.push(others[1])
    line.take(head)
    assert [line.pop() for _ in range(len(line))] == others and line.next(slots_free=0) is None


def test_those_that_leave_early_are_forgotten_also_when_nobody_is_served() -> None:
    line = WaitingLine()
    head = entry(0, priority=1)
    line.push(head)
    for arrival in range(1, 500):
        gone = entry(arrival)
        line.push(gone)
        line.remove(gone)
        assert len(line) == 1 and not gone.waiting
    assert len(line._heap) < 5, "aborted entries pile up behind a head that cannot be admitted"
    assert line.first() is head


def test_the_head_may_leave_early() -> None:
    line = WaitingLine()
    entries = [entry(arrival) for arrival in range(5)]
    for one in entries:
        line.push(one)
    line.remove(entries[0])
    line.remove(entries[1])
    assert line.first() is entries[2] and len(line) == 3
