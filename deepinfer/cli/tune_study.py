"""The search itself: Optuna proposes points, an evaluator says what they are worth, and a journal remembers both.

Each trial gets a sampler of its own, seeded by the recipe's seed and the trial's number, so that a search that was
interrupted goes on as if it had not been. A point is tried once: drawn again, it is worth what it was.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from deepinfer.cli.extras import how_to_install
from deepinfer.cli.points_file import Point, append_point, read_points
from deepinfer.cli.tune_journal import JOURNAL, mend
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.sampling.interrupt import DeferredInterrupt

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

    from deepinfer.cli.tune_space import Space, Values
    from deepinfer.cli.tune_trial import Evaluator
    from deepinfer.config.sweeps import Search

_NAME, _ASKED = "deepinfer", "asked"
_DRAWS = 10  # for each point that is wanted: where a space has fewer points than it seems, a search ends too


class Searching:
    """One search in one folder, perhaps begun by an earlier run. `asked` is what must not change from run to run."""

    def __init__(self, folder: Path, search: Search, space: Space, evaluate: Evaluator, asked: dict[str, Any]) -> None:
        self.folder, self.search, self.space = folder, search, space
        self._evaluate = evaluate
        self._key = hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()
        self.study = _open(folder, list(search.objectives.values()), asked)
        trials = self.study.get_trials(deepcopy=False)
        self._interrupted = [trial for trial in trials if trial.state.name == "RUNNING"]
        self._known = read_points(folder)  # of other commands too, where they share the folder
        drawn = [self.identity(trial.params) for trial in trials if trial.state.is_finished()]
        self._tried = set(drawn) & self._known.keys()  # a point whose line was lost is tried again
        self._again = bool(drawn) and drawn[-1] in drawn[:-1]  # the last trial drew a point that had been tried
        self.number_at_start = self.number_done
        self.out_of_time = False  # sweep.stop_after_s is over

    @property
    def total(self) -> int:
        """Points that the search ends with: all of a small space, else as many as the recipe says."""
        return min(self.search.num_trials, self.space.size or self.search.num_trials)

    @property
    def number_done(self) -> int:
        return len(self._tried)

    @property
    def points(self) -> list[Point]:
        """The points of this search, in the order in which they were tried."""
        mine = (point for identity, point in self._known.items() if identity in self._tried)
        return sorted(mine, key=lambda point: point.number)

    def run(self, on_point: Callable[[Point], None]) -> None:
        """Try points until there are enough or the time is over. Raises Refused where an objective is no figure."""
        ends_s = time.perf_counter() + (self.search.stop_after_s or float("inf"))
        for _ in range(_DRAWS * self.total):
            self.out_of_time = time.perf_counter() >= ends_s
            if self.number_done >= self.total or self.out_of_time:
                return
            with DeferredInterrupt():
                trial = self._next()
                values = self.space.draw(trial)
            point = self._point(trial.number, values)
            with DeferredInterrupt():
                self._tell(trial, point)
                self._again = point.identity in self._tried
                self._tried.add(point.identity)
            if not self._again:
                on_point(point)

    def identity(self, values: Values) -> str:
        """What makes two points of this search the same."""
        text = self._key.encode() + msgspec.json.encode(values, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16]

    def _next(self) -> Trial:
        """The trial that an earlier run did not end, or a new one. A space that can be gone through is gone through; else a
        draw that brought nothing new is followed by a random one."""
        from optuna.samplers import RandomSampler, TPESampler
        from optuna.trial import Trial, TrialState

        trials = self.study.get_trials(deepcopy=False)
        begun = self._interrupted.pop(0) if self._interrupted else None
        number = begun.number if begun else len(trials)
        seed = int(np.random.SeedSequence([self.search.seed, number]).generate_state(1)[0])
        go_through = self.total == self.space.size
        self.study.sampler = RandomSampler(seed) if self._again or go_through else TPESampler(seed=seed)
        if begun:
            return Trial(self.study, begun._trial_id)
        if go_through and not any(trial.state == TrialState.WAITING for trial in trials):
            points = self.space.points()
            self.study.enqueue_trial(next(values for values in points if self.identity(values) not in self._tried))
        return self.study.ask()

    def _point(self, number: int, values: Values) -> Point:
        """A point that was tried before is not tried again: its worth is known."""
        identity = self.identity(values)
        if identity in self._known and self._known[identity].settled:
            return self._known[identity]
        return self._evaluate(number, identity, values)

    def _tell(self, trial: Trial, point: Point) -> None:
        from optuna.trial import TrialState

        if self._known.get(point.identity) != point:
            append_point(self.folder, point)
            self._known[point.identity] = point
        if point.failed:
            trial.set_user_attr("refusal", f"exit code {point.exit_code}: {point.refusal}")
            self.study.tell(trial.number, state=TrialState.FAIL)
            return
        values = {name: point.value(name) for name in self.search.objectives}
        unknown = [name for name, value in values.items() if value is None]
        if unknown:
            raise Refused([_no_figure(name, point) for name in unknown])
        self.study.tell(trial.number, [float(value) for value in values.values() if value is not None])


def _no_figure(name: str, point: Point) -> Problem:
    known = [*(figure.name for figure in point.figures), *point.facts]
    why = f"there are {listed(known)}"
    return Problem(asked=f"sweep.objectives.{name}", found="no such figure comes of a point", why=why)


def _open(folder: Path, directions: list[Literal["maximize", "minimize"]], asked: dict[str, Any]) -> Study:
    """The study of a folder, begun where there is none. Raises Refused where the folder holds another search, and where
    Optuna is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        found, fix = "optuna is not installed", how_to_install("tune")
        raise Refused([Problem(asked="tune", found=found, fix=fix, code=ExitCode.OTHER)]) from error
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    mend(folder)
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    names = [study.study_name for study in optuna.get_all_study_summaries(storage)]
    if _NAME not in names:
        study = optuna.create_study(study_name=_NAME, storage=storage, directions=directions)
        study.set_user_attr(_ASKED, asked)
        return study
    study = optuna.load_study(study_name=_NAME, storage=storage)
    if _ASKED not in study.user_attrs:  # cut off before its first trial
        study.set_user_attr(_ASKED, asked)
    before = study.user_attrs[_ASKED]
    changed = [name for name in {**before, **asked} if before.get(name) != asked.get(name)]
    if changed:
        found = f"the folder holds a search that differs in {listed(changed).replace(' or ', ' and ')}"
        raise Refused([Problem(asked=f"out={folder}", found=found, why="its points cannot be compared", fix="out=…")])
    return study
