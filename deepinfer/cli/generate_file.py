"""`prompts=FILE output=FILE`: a batch with a progress bar, which goes on where it stopped."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from deepinfer.api import LLM
    from deepinfer.config.argv import Invocation
    from deepinfer.plan.types import Plan
    from deepinfer.serving.batch_file import Line
    from deepinfer.serving.jobs import Job


def run_file(llm: LLM, plan: Plan, invocation: Invocation, *, thinking: bool) -> int:
    """Run every line of a file. Without output= the records go to stdout. Broken lines are records, not failures."""
    from deepinfer.serving.batch_file import read_lines
    from deepinfer.serving.result_file import ForeignOutput, ResultFile

    assert invocation.prompts is not None, "there is a file of prompts"
    source = Path(invocation.prompts).expanduser()
    target = Path(invocation.output).expanduser() if invocation.output else None
    _check_paths(invocation, source, target)
    settings = f"{plan.numerics_digest} {msgspec.json.encode(plan.sampling, order='deterministic').decode()} {thinking}"
    total = sum(1 for _ in read_lines(source))
    if target is None:
        return _run_lines(llm, read_lines(source, settings), total, 0, _print_record, thinking)
    try:
        results = ResultFile(target, read_lines(source, settings))
    except ForeignOutput as error:
        raise Refused([Problem(asked=f"output={target}", found=str(error))]) from error
    with results:
        if results.done:
            print(f"deepinfer: {results.done} of {total} results are there already; going on", file=sys.stderr)
        lines = itertools.islice(read_lines(source, settings), results.done, None)
        try:
            return _run_lines(llm, lines, total, results.done, results.write, thinking)
        except KeyboardInterrupt:
            print(f"deepinfer: interrupted; the same command goes on from what {target} holds", file=sys.stderr)
            return ExitCode.INTERRUPTED


def _check_paths(invocation: Invocation, source: Path, target: Path | None) -> None:
    problems = []
    if not source.is_file():
        found = "a folder" if source.is_dir() else "no such file"
        problems.append(Problem(asked=f"prompts={invocation.prompts}", found=found, why="it holds one prompt a line"))
    if target is not None and not target.parent.is_dir():
        problems.append(Problem(asked=f"output={invocation.output}", found=f"no folder {target.parent} to write to"))
    if target is not None and target.is_dir():
        problems.append(
            Problem(asked=f"output={invocation.output}", found="a folder", fix=f"output={target}/out.jsonl")
        )
    if target is not None and target.exists() and source.exists() and target.samefile(source):
        problems.append(Problem(asked=f"output={invocation.output}", found="the very file that prompts= names"))
    if problems:
        raise Refused(problems)


def _run_lines(
    llm: LLM, lines: Iterator[Line], total: int, done: int, write: Callable[[dict[str, Any]], None], thinking: bool
) -> int:
    from deepinfer.serving.batch_file import job_of, record

    kept: deque[Line] = deque()  # lines in flight, in order

    def jobs() -> Iterator[Job]:
        for line in lines:
            kept.append(line)
            yield job_of(line, llm.desk, llm.default_params, thinking=thinking)

    errors = tokens = 0
    started_s = time.perf_counter()
    with _progress(total, done) as advance:
        for output in llm.run(jobs()):
            write(record(kept.popleft(), output))
            errors += any(answer.error is not None for answer in output.outputs)
            tokens += sum(len(answer.token_ids) for answer in output.outputs)
            advance()
    elapsed_s = time.perf_counter() - started_s
    print(
        f"deepinfer: {total - done} results ({errors} with errors), {tokens} tokens in {elapsed_s:.2f} s: "
        f"{tokens / max(elapsed_s, 1e-9):.0f} tokens/s",
        file=sys.stderr,
    )
    return ExitCode.OK


def _print_record(record: dict[str, Any]) -> None:
    print(
        json.dumps(record, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace").decode(), flush=True
    )


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where that is a terminal, else nothing. Gives the function that moves it by one."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total, completed=done)
        yield lambda: bar.advance(task)
