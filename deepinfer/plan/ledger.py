"""What comes up while a plan is made: faults, decisions, notes, warnings. Written to, never read for a decision."""

from dataclasses import dataclass, field

from deepinfer.config.errors import ExitCode, Problem
from deepinfer.plan.types import Decision

OF = " of "  # between a key and the role that a decision is about, where each role has its own


@dataclass(slots=True)
class Ledger:
    problems: list[Problem] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def decide(self, key: str, value: object, rule: str, *, runner_up: object = "", estimate: str = "") -> None:
        """Write down how an "auto" was settled."""
        self.decisions.append(
            Decision(key=key, value=str(value), rule=rule, runner_up=str(runner_up), estimate=estimate)
        )

    def refuse(self, problem: Problem) -> None:
        self.problems.append(problem)


def plan_problem(asked: str, found: str, why: str = "", fix: str = "") -> Problem:
    """A layout or a combination that cannot be: exit code 3."""
    return Problem(asked=asked, found=found, why=why, fix=fix, code=ExitCode.PLAN)
