"""Speculation that does not pay is turned off, told once, and tried again."""

from collections import Counter

import numpy as np
import pytest

from deepinfer.speculation.back_off import LONGEST_PAUSE_STEPS, BackOff


class Machine:
    """An engine whose steps take set times; drafts made in one step are checked in the next."""

    def __init__(self, back_off: BackOff, *, sequences: int = 4, prompt_rows: int = 0, lag: int = 0) -> None:
        self.back_off, self.sequences, self.prompt_rows = back_off, sequences, prompt_rows
        self.plain_s, self.speculated_s, self.acceptance = 1.0, 1.2, 0.5
        self.asked = [True] * lag  # answers of steps that are scheduled but not through
        self.drafted, self.rng, self.kinds = False, np.random.default_rng(0), Counter()  # type: ignore[var-annotated]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.asked.append(self.back_off.drafting)
            drafts = self.asked.pop(0)
            checked = 2 * self.sequences if self.drafted and drafts else 0
            accepted = int(self.rng.binomial(checked, self.acceptance)) if checked else 0
            self.kinds["drafted" if drafts else "plain"] += 1
            self.back_off.observe(
                num_sequences=self.sequences,
                num_rows=self.sequences + checked + self.prompt_rows,
                num_tokens=self.sequences + accepted,
                num_checked=checked,
                drafted=drafts,
                device_s=(self.speculated_s if drafts else self.plain_s) * self.rng.uniform(0.98, 1.02),
            )
            self.drafted = drafts


@pytest.mark.parametrize("lag", [0, 1])
def test_speculation_that_pays_stays_on(lag: int) -> None:
    machine = Machine(BackOff(), lag=lag)
    machine.run(10_000)
    assert machine.back_off.gain == pytest.approx(2 / 1.2 - 1, abs=0.1)
    assert machine.kinds["plain"] < 100, "comparing costs little"
    assert not machine.back_off.take_notice()


@pytest.mark.parametrize("lag", [0, 1])
def test_speculation_that_costs_is_turned_off_and_told_once(lag: int) -> None:
    machine = Machine(BackOff(), lag=lag)
    machine.acceptance, machine.speculated_s = 0.04, 1.25
    machine.run(700)
    assert machine.back_off.state == "off"
    notice = machine.back_off.take_notice()
    for part in (
        "acceptance 4%",
        "256 steps",
        "speculation cost 1",
        "drafting is off",
        "1,000 steps",
        "speculation=none",
    ):
        assert part in notice
    machine.run(20_000)
    assert not machine.back_off.take_notice()


def test_tries_grow_rare() -> None:
    machine = Machine(BackOff())
    machine.acceptance = 0.0
    machine.run(200_000)
    assert machine.kinds["drafted"] < 1_500 and machine.back_off.pause == LONGEST_PAUSE_STEPS


def test_it_comes_back_when_it_pays_again() -> None:
    machine = Machine(BackOff())
    machine.acceptance = 0.0
    machine.run(5_000)
    assert not machine.back_off.drafting
    machine.acceptance = 0.9
    machine.run(10_000)
    assert machine.back_off.drafting and machine.back_off.pause == machine.back_off.first_pause


def test_an_estimate_is_enough_until_steps_are_seen() -> None:
    machine = Machine(BackOff(lambda sequences: 1.0, window=20))
    machine.acceptance = 0.0
    machine.run(22)
    assert not machine.back_off.drafting and machine.kinds["drafted"] == 20


def test_seen_steps_win_over_the_estimate() -> None:
    """The estimate says that steps without drafts are dear; they are not."""
    machine = Machine(BackOff(lambda sequences: 3.0))
    machine.acceptance, machine.speculated_s = 0.1, 2.0
    machine.run(2_000)
    assert machine.back_off.take_notice()


def test_drafts_that_are_never_checked_cost_too() -> None:
    """A budget of zero at every step still pays the drafter."""
    back_off = BackOff(lambda sequences: 1.0, window=50)
    for _ in range(50):
        back_off.observe(num_sequences=4, num_rows=4, num_tokens=4, num_checked=0, drafted=True, device_s=1.1)
    assert not back_off.drafting


def test_steps_with_prompts_are_not_compared() -> None:
    machine = Machine(BackOff(), prompt_rows=512)
    machine.acceptance = 0.0
    machine.run(3_000)
    assert machine.back_off.gain is None and not machine.back_off.take_notice()


def test_a_stray_step_does_not_turn_it_off() -> None:
    back_off = BackOff(lambda sequences: 1.0, window=100)
    for number in range(100):
        slow_s = 1_000.0 if number == 50 else 1.2
        back_off.observe(num_sequences=4, num_rows=12, num_tokens=8, num_checked=8, drafted=True, device_s=slow_s)
    assert back_off.drafting and back_off.gain is not None and back_off.gain > 0.4


def test_steps_of_other_numbers_of_sequences_do_not_mislead() -> None:
    """Steps without drafts were seen of one sequence only; one of 64 takes longer anyway."""
    back_off = BackOff(window=20)
    for _ in range(5):
        back_off.observe(num_sequences=1, num_rows=1, num_tokens=1, num_checked=0, drafted=False, device_s=1.0)
    for _ in range(40):
        back_off.observe(num_sequences=64, num_rows=192, num_tokens=128, num_checked=128, drafted=True, device_s=4.0)
    assert back_off.gain is None


def test_the_first_step_after_a_pause_is_not_counted() -> None:
    """It drafts, and has nothing to check yet."""
    back_off = BackOff(lambda sequences: 1.0, window=1)
    back_off.observe(num_sequences=1, num_rows=1, num_tokens=1, num_checked=0, drafted=False, device_s=1.0)
    back_off.observe(num_sequences=1, num_rows=1, num_tokens=1, num_checked=0, drafted=True, device_s=1.2)
    assert back_off.drafting and back_off.gain is None
    back_off.observe(num_sequences=1, num_rows=1, num_tokens=1, num_checked=0, drafted=True, device_s=1.2)
    assert not back_off.drafting, "the next one is: nothing was checked although drafts were made"
