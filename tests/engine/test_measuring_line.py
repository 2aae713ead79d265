"""Who waits for step times to be measured is told so, and only who waits."""

import io

import pytest

from deepinfer.engine.measuring_line import REWRITE, MeasuringLine


class Screen(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def run(screen: Screen, size_s: float) -> str:
    now = [0.0]
    with MeasuringLine(screen, lambda: now[0]) as line:
        for done in range(1, 11):
            now[0] += size_s
            line.report(done, 20)
    return screen.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_quick_ones_say_nothing(is_terminal: bool) -> None:
    assert not run(Screen(is_terminal=is_terminal), 0.05)


def test_a_terminal_sees_it_grow_and_go() -> None:
    shown = run(Screen(is_terminal=True), 0.4)
    assert shown.split(REWRITE)[1:] == [
        *(f"measuring step times: {done} of at most 20 sizes" for done in range(3, 11)),
        "",
    ]


def test_a_file_gets_one_line() -> None:
    assert run(Screen(is_terminal=False), 0.4) == "deepinfer: measuring step times: 3 of at most 20 sizes\n"
