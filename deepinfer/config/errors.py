"""What a user is told: asked → found → why they clash → what to type. All problems at once, one exit code."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import IntEnum

from msgspec import Struct


class ExitCode(IntEnum):
    """The process's last word. Of several classes the lowest wins, and OTHER loses to all."""

    OK = 0
    OTHER = 1
    CONFIG = 2
    PLAN = 3
    DEVICE = 4
    WEIGHTS = 5
    MEMORY = 6
    NETWORK = 7
    INTERRUPTED = 130
    TERMINATED = 143


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, each part one plain clause. `fix` is literal: a user can type it."""

    asked: str
    found: str
    why: str = ""
    fix: str = ""
    code: ExitCode = ExitCode.CONFIG
    file: str = ""  # that says so; empty where it was typed, or is nobody's word
    line: int = 0

    def __str__(self) -> str:
        because = f"; {self.why}" if self.why else ""
        place = f"\n    set in {self.file}:{self.line}" if self.file else ""
        remedy = f"\n    type: {self.fix}" if self.fix else ""
        return f"{self.asked}\n    {self.found}{because}{place}{remedy}"


class Refused(ValueError):
    """The user's mistake, or this machine's: everything that stands against what was asked."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        assert self.problems, "a refusal names at least one problem"
        super().__init__(render_problems(self.problems))

    @property
    def exit_code(self) -> ExitCode:
        return worst_code(self.problems)


def worst_code(problems: Sequence[Problem]) -> ExitCode:
    """The class of the whole: the lowest present, OTHER only when nothing else is there; OK for no problem."""
    codes = [problem.code for problem in problems]
    return min(codes, key=lambda code: (code is ExitCode.OTHER, code), default=ExitCode.OK)


def render_problems(problems: Sequence[Problem]) -> str:
    """The problems as the terminal shows them, first asked first."""
    head = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{head}:", *(f"  {problem}" for problem in problems)])


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant, if one is near enough; the same letters in another order come first.

    Parts between underscores that both begin or end with do not make them near: slice_seconds is not slice_contexts.
    """
    folded = {name.lower(): name for name in known}
    asked = word.lower()
    swapped = [name for name in folded if sorted(name) == sorted(asked)]
    near = get_close_matches(asked, folded, n=3, cutoff=cutoff)
    close = swapped or [name for name in near if _own_parts_are_near(asked, name, cutoff)]
    return folded[close[0]] if close else None


def _own_parts_are_near(one: str, other: str, cutoff: float) -> bool:
    """Whether two words are near in what remains without the parts that both begin or end with; nothing is near to all."""
    ours, theirs = one.split("_"), other.split("_")
    for end in (0, -1):
        while ours and theirs and ours[end] == theirs[end]:
            ours.pop(end)
            theirs.pop(end)
    return not (ours and theirs) or bool(get_close_matches("_".join(ours), ["_".join(theirs)], cutoff=cutoff))


def listed(words: Iterable[str]) -> str:
    """Words for a sentence: "ep2, ep4 or ep8"; "nothing" for none."""
    words = list(words)
    if len(words) < 2:
        return words[0] if words else "nothing"
    return f"{', '.join(words[:-1])} or {words[-1]}"
