"""The figures of benchmarks/host_gap.py from points of a device's time that are given, without a device."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Point:
    """What an event of the device tells, in milliseconds."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, later: "Point") -> float:
        return later.at_ms - self.at_ms


def steps_of(monkeypatch: pytest.MonkeyPatch, *, ahead: bool) -> list[Any]:
    """Four steps of 5 ms: 0.01 ms between two of them, and 0.04 ms in front of each one's sampling."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from host_gap import CALLS, StepTimes

    steps = []
    for start_ms in (0.0, 5.0, 10.0, 15.0):
        times = {"submit": (0.0, 4.0), "sample": (4.04, 4.99)}
        begun, ended = ({name: Point(start_ms + span[i]) for name, span in times.items()} for i in (0, 1))
        host_s = dict.fromkeys(CALLS, 0.1e-3)
        steps.append(StepTimes(host_s, begun, ended, dict.fromkeys(times, ahead), 4e-3))
    return steps


def test_a_device_that_never_waits_inside_a_launch_is_busy_but_for_its_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(monkeypatch, ahead=True)
    from host_gap import figures

    found = figures(steps, wall_s=15e-3)
    assert (found["step_us"], found["gap_us"], found["gap_most_us"]) == (5000.0, 50.0, 50.0)
    assert (found["gap_between_us"], found["gap_before_sampling_us"]) == (10.0, 40.0)
    assert found["busy_share"] == found["busy_share_least"] == 0.99 and found["ahead_share"] == 1
    assert (found["submit_us"], found["waited_us"], found["rest_us"]) == (100.0, 4000.0, 500.0)


def test_where_it_may_have_waited_all_launching_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(monkeypatch, ahead=False)
    from host_gap import figures

    found = figures(steps, wall_s=15e-3)
    assert (found["gap_us"], found["gap_most_us"]) == (50.0, 250.0)
    assert (found["busy_share"], found["busy_share_least"], found["ahead_share"]) == (0.99, 0.95, 0.0)


def test_without_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import host_gap

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["host_gap.py", "speculation=none"])
    with pytest.raises(SystemExit, match="no CUDA device here"):
        host_gap.main()
