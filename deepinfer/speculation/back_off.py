"""Whether speculation pays, by the clock: tokens a second with it against steps without, and drafting off while it does not.

Steps without drafts are run from time to time to compare with, a few in some hundred, since no model of a step knows all that
speculation costs (replays, copies, a busy host).
"""

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Literal, NamedTuple

WINDOW_STEPS = 256  # with speculation, between two judgements
PROBE_STEPS = 32  # with speculation, when tried again
FIRST_PAUSE_STEPS, LONGEST_PAUSE_STEPS = 1_000, 64_000  # without it, doubled after every probe that failed
PLAIN_STEPS = 4  # without it, to compare with
COMPARED_EVERY, COMPARED_EVERY_WHEN_CLEAR, FIRST_COMPARED_AFTER = 512, 4_096, 64  # steps between such
CLEAR_GAIN = 0.2  # from which on comparing rarely is enough
ALIKE = 1.25  # numbers of sequences within this factor are compared
LEAST_ALIKE, MOST_ALIKE = 3, 9  # steps without drafts that a step is compared with
STRAY = 10  # times the usual slow-down: what is beyond it counts as that much

State = Literal["on", "compare", "off", "probe"]


class Judged(NamedTuple):
    """A step with speculation, beside one without."""

    tokens_each: float
    device_s: float
    without_s: float  # seconds of a step of as many sequences without drafts
    accepted: int
    checked: int


class BackOff:
    """Turns drafting off when it costs more than it brings, and tries again at growing intervals.

    `plain_s`: seconds that a step of so many sequences takes without drafts, for while none was seen; None: there is no such
    estimate. All else comes from `observe`. Steps with prompt rows are not compared.
    """

    def __init__(
        self,
        plain_s: Callable[[int], float] | None = None,
        *,
        window: int = WINDOW_STEPS,
        first_pause: int = FIRST_PAUSE_STEPS,
    ) -> None:
        self.plain_s, self.window, self.first_pause = plain_s, window, first_pause
        self.state: State = "on"
        self.gain: float | None = (
            None  # tokens a second with speculation over those without, less 1, at the last judgement
        )
        self.acceptance: float | None = None  # share of the drafts checked then
        self._failures = 0  # since it last paid over a whole window
        self._steps = self._plain_steps = 0  # in this state
        self._since_compared = self._comparisons = 0
        self._was_drafted = True
        self._plain: deque[tuple[int, float]] = deque(maxlen=64)  # sequences, seconds
        self._judged: list[Judged] = []
        self._notice: str | None = None
        self._said = False

    @property
    def drafting(self) -> bool:
        """Whether the next step is to draft and to check drafts."""
        return self.state in ("on", "probe")

    @property
    def pause(self) -> int:
        """Steps without drafts before the next try."""
        return min(self.first_pause << max(0, self._failures - 1), max(self.first_pause, LONGEST_PAUSE_STEPS))

    def take_notice(self) -> str:
        """What the user should know, once; else ""."""
        notice, self._notice = self._notice, None
        return notice or ""

    def observe(
        self, *, num_sequences: int, num_rows: int, num_tokens: int, num_checked: int, drafted: bool, device_s: float
    ) -> None:
        """A step is through: `interfaces.VerifyLengths`. Of its rows `num_checked` were drafts."""
        self._steps += 1
        self._since_compared += 1
        restarted = drafted and not self._was_drafted and not num_checked  # nothing was drafted for it yet
        self._was_drafted = drafted
        if num_sequences > 0 and num_rows == num_sequences + num_checked and device_s > 0:
            if not drafted and not num_checked:
                self._plain.append((num_sequences, device_s))
                self._plain_steps += 1
            elif drafted and not restarted and (without_s := self.without_s(num_sequences)):
                tokens_each, accepted = num_tokens / num_sequences, max(0, num_tokens - num_sequences)
                self._judged.append(Judged(tokens_each, device_s, without_s, accepted, num_checked))
        self._move(num_sequences)

    def without_s(self, num_sequences: int) -> float | None:
        """Seconds of a step of so many sequences without drafts: as seen lately, else as estimated, else None."""
        alike = self._alike(num_sequences)
        if len(alike) >= LEAST_ALIKE:
            return median(alike)
        return self.plain_s(num_sequences) if self.plain_s else None

    def _alike(self, num_sequences: int) -> list[float]:
        least, most = num_sequences / ALIKE, num_sequences * ALIKE
        return [seconds for count, seconds in self._plain if least <= count <= most][-MOST_ALIKE:]

    def _move(self, num_sequences: int) -> None:
        """Change state where it is time to."""
        if self.state == "off":
            if self._steps >= self.pause:
                self._enter("probe")
        elif self.state == "compare":
            if self._plain_steps >= PLAIN_STEPS or self._steps >= 4 * PLAIN_STEPS:
                self._enter("on")
        elif len(self._judged) >= (PROBE_STEPS if self.state == "probe" else self.window):
            self._judge()
        elif self.state == "on" and self._since_compared >= self._compare_after(num_sequences):
            self._enter("compare")

    def _compare_after(self, num_sequences: int) -> int:
        if self.without_s(num_sequences) is None or not self._plain:
            return min(FIRST_COMPARED_AFTER << self._comparisons, COMPARED_EVERY)
        return COMPARED_EVERY_WHEN_CLEAR if (self.gain or 0) > CLEAR_GAIN else COMPARED_EVERY

    def _enter(self, state: State) -> None:
        if not self.drafting:
            self._since_compared = 0
        self._comparisons = min(self._comparisons + (state == "compare"), 16)
        self.state, self._steps, self._plain_steps = state, 0, 0

    def _judge(self) -> None:
        """Each step is weighed by its time; a stray one counts as STRAY usual ones."""
        steps, self._judged = self._judged, []
        most = STRAY * median(step.device_s / step.without_s for step in steps)
        saved_s = sum(step.tokens_each * step.without_s for step in steps)
        spent_s = sum(min(step.device_s, most * step.without_s) for step in steps)
        self.gain = saved_s / spent_s - 1
        self.acceptance = sum(step.accepted for step in steps) / max(1, sum(step.checked for step in steps))
        if self.gain >= 0:
            self._failures = 0 if self.state == "on" else self._failures
            self._enter("on")
            return
        self._failures += 1
        if not self._said:
            self._notice, self._said = self._sentence(len(steps)), True
        self._enter("off")

    def _sentence(self, steps: int) -> str:
        return (
            f"speculation does not pay here: acceptance {_percent(self.acceptance or 0.0)} over {steps:,} steps, "
            f"speculation cost {_percent(-(self.gain or 0.0))} of the tokens per second; drafting is off, tried again after "
            f"{self.pause:,} steps, then ever more rarely; speculation=none turns it off for good"
        )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or not share else f"{share:.1%}"
