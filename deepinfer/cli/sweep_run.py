"""Runs of a sweep: processes of their own, a few at once, each with a log; wound up together on Ctrl-C."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from deepinfer.cli.out_folder import naming
from deepinfer.config.errors import Problem, render_problems

if TYPE_CHECKING:
    from deepinfer.cli.sweep_points import Job

POLL_S = 0.02
GRACE_S = 30.0  # from Ctrl-C until a run that does not end is killed


class Ended(Struct, frozen=True, kw_only=True):
    """A run that is over. `said` is its stderr and its refusal, `printed` the file with its stdout."""

    number: int
    job: Job
    exit_code: int
    wall_s: float
    said: str
    printed: Path


class _Refusal(Struct):
    """What a run with format=json prints when it refuses."""

    problems: tuple[Problem, ...]


class _Run:
    """One process; `log` gets its command line and stderr, `printed` its stdout. It ends when this process does."""

    def __init__(self, number: int, job: Job, folder: Path) -> None:
        self.number, self.job = number, job
        self.log, self.printed = folder / f"{number:04d}.log", folder / f"{number:04d}.out"
        head = f"$ deepinfer {shlex.join(job.arguments)}\n".encode("utf-8", "surrogateescape")
        with naming(self.log), self.log.open("wb") as log, self.printed.open("wb") as out:
            log.write(head)
            log.flush()
            self._head_bytes = len(head)
            self.started_s = time.perf_counter()
            command = [sys.executable, "-m", "deepinfer.cli.child", *job.arguments]
            # in a process group of its own: Ctrl-C reaches this process alone, which then tells each run once
            self.process = Popen(command, stdin=PIPE, stdout=out, stderr=log, process_group=0)

    def ended(self) -> Ended | None:
        """What became of it; None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        self.release()
        if code:
            self._log_refusal()
        return Ended(
            number=self.number,
            job=self.job,
            exit_code=code if code >= 0 else 128 - code,  # a signal, as shells count it
            wall_s=round(time.perf_counter() - self.started_s, 3),
            said=self.log.read_bytes()[self._head_bytes :].decode("utf-8", "replace"),
            printed=self.printed,
        )

    def release(self) -> None:
        """Close our end of the pipe by which a run sees that this process is still there."""
        if self.process.stdin:
            self.process.stdin.close()

    def _log_refusal(self) -> None:
        """Add a refusal that came as JSON to the log, as the terminal would show it."""
        try:
            problems = msgspec.json.decode(self.printed.read_bytes(), type=_Refusal).problems
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        with naming(self.log), self.log.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"deepinfer: {render_problems(problems)}\n")


def run_jobs(
    jobs: Iterable[Job], folder: Path, *, first_number: int, at_once: int, go_on: Callable[[], bool]
) -> Iterator[Ended]:
    """Run jobs, at most `at_once` together, and yield each as it ends. While `go_on()` is false none is started.

    Logs go to `folder`. Leaving the iterator early, by Ctrl-C too, interrupts what still runs and waits for it.
    """
    waiting = deque(enumerate(jobs, first_number))
    running: list[_Run] = []
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        while running or (waiting and go_on()):
            while waiting and len(running) < at_once and go_on():
                number, job = waiting.popleft()
                running.append(_Run(number, job, folder))
            finished = [(run, ended) for run in running if (ended := run.ended())]
            for run, ended in finished:
                running.remove(run)
                yield ended
            if not finished:
                time.sleep(POLL_S)
    finally:
        _wind_up(running)


def _wind_up(running: list[_Run]) -> None:
    """Terminate runs and wait for them; kill what does not listen, and all of them at a second Ctrl-C.

    Not by SIGINT: what is started in the background of a shell ignores it, and so do its children.
    """
    ends_s = time.perf_counter() + GRACE_S
    try:
        for run in running:
            with contextlib.suppress(ProcessLookupError):
                run.process.send_signal(signal.SIGTERM)
        for run in running:
            with contextlib.suppress(TimeoutExpired):
                run.process.wait(max(0.0, ends_s - time.perf_counter()))
    finally:
        for run in running:
            with contextlib.suppress(ProcessLookupError):
                run.process.kill()  # does nothing to what has ended
            run.process.wait()
            run.release()
