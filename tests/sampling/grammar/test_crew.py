"""Threads that share the grammars of a step: results in order, faults to the caller, the answers of one thread."""

import threading
from collections.abc import Iterator

import pytest

from deepinfer.sampling.grammar.crew import LEAST_EACH, Crew


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(4)
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, 1, 2 * LEAST_EACH, 7, 50])
def test_results_come_in_the_order_of_things(crew: Crew, count: int) -> None:
    assert crew.map(lambda x: 3 * x, range(count)) == [3 * x for x in range(count)]


def test_work_is_shared_where_there_is_enough_of_it(crew: Crew) -> None:
    """The first thing of each share waits until all threads have one."""
    gate = threading.Barrier(4, timeout=120)

    def work(x: int) -> int:
        if x < 4:
            gate.wait()
        return threading.get_ident()

    assert len(set(crew.map(work, range(8)))) == 4
    assert set(crew.map(lambda _: threading.get_ident(), range(2 * LEAST_EACH - 1))) == {threading.get_ident()}
    assert set(Crew(1).map(lambda _: threading.get_ident(), range(8))) == {threading.get_ident()}


def test_a_fault_reaches_the_caller_and_the_crew_goes_on(crew: Crew) -> None:
    def work(x: int) -> int:
        if x == 6:
            raise ValueError("six")
        return x

    with pytest.raises(ValueError, match="six"):
        crew.map(work, range(8))
    assert crew.map(work, range(6)) == list(range(6))
