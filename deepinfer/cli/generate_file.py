"""`prompts=FILE output=FILE`: a batch with a progress bar, which goes on where it stopped."""

from __future__ import annotations

import itertools
import json
import sys
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from deepinfer.cli.streams import printable_json
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from deepinfer.api import LLM
    from deepinfer.config.argv import Invocation
    from deepinfer.plan.types import Plan
    from deepinfer.serving.batch_file import Line
    from deepinfer.serving.jobs import Job
    from deepinfer.serving.result_file import ResultFile

MOST_NOTICES = 5  # on stderr; every record holds its own


def run_file(llm: LLM, plan: Plan, invocation: Invocation, *, thinking: bool) -> int:
    """Run every line of a file. Without output= the records go to stdout. A line that fails is a record with its error and
    stops no other; the exit code then is 1."""
    from deepinfer.serving.batch_file import read_lines

    assert invocation.prompts is not None, "there is a file of prompts"
    source, target = _paths(invocation.prompts, invocation.output)
    settings = _settings(plan, thinking, llm.asked)
    total = sum(1 for _ in read_lines(source))
    if target is None:
        return _run_lines(llm, read_lines(source, settings), total, 0, _print_record, thinking)
    with _opened(target, source, settings) as results:
        earlier = ExitCode.OTHER if results.failed else ExitCode.OK
        if results.done == total:
            print(f"deepinfer: {_results(total, results.failed)} are all there already", file=sys.stderr)
            return earlier
        if results.done:
            print(f"deepinfer: {results.done} of {total} results are there already; going on", file=sys.stderr)
        lines = itertools.islice(read_lines(source, settings), results.done, None)
        try:
            return max(earlier, _run_lines(llm, lines, total, results.done, results.write, thinking))
        except KeyboardInterrupt:
            print(f"deepinfer: interrupted; the same command goes on from what {target} holds", file=sys.stderr)
            return ExitCode.INTERRUPTED


def check_file(plan: Plan, invocation: Invocation, *, thinking: bool, asked: frozenset[str]) -> None:
    """Raise Refused for a file of results that is of another run, before anything is built."""
    if invocation.prompts is None:
        return
    source, target = _paths(invocation.prompts, invocation.output)
    if target is not None and target.exists():
        _opened(target, source, _settings(plan, thinking, asked)).close()


def _paths(prompts: str, output: str | None) -> tuple[Path, Path | None]:
    return user_path(prompts, "prompts"), user_path(output, "output") if output else None


def _settings(plan: Plan, thinking: bool, asked: frozenset[str]) -> str:
    """What tells apart runs whose results may differ."""
    sampling = msgspec.json.encode(plan.sampling, order="deterministic").decode()
    return " ".join([plan.numerics_digest, sampling, str(thinking), *sorted(asked & {"temperature", "top_p"})])


def _opened(target: Path, source: Path, settings: str) -> ResultFile:
    from deepinfer.serving.batch_file import read_lines
    from deepinfer.serving.result_file import ForeignOutput, ResultFile

    try:
        return ResultFile(target, read_lines(source, settings))
    except ForeignOutput as error:
        raise Refused([Problem(asked=f"output={target}", found=str(error))]) from error


def _results(number: int, failed: int) -> str:
    return f"{number} result{'s' * (number != 1)} ({failed} with errors)"


def path_problems(prompts: str | None, output: str | None) -> list[Problem]:
    """What is wrong with the files that prompts= and output= name, known without a plan."""
    if prompts is None and output is not None:
        why = "results are written for a file of prompts"
        return [Problem(asked=f"output={output}", found="no prompts= to go with it", why=why, fix="prompts=FILE")]
    if not prompts:
        return []
    try:
        source, target = _paths(prompts, output)
    except Refused as refused:
        return list(refused.problems)
    problems = []
    if prompts == "-" and not source.is_file():
        why = "the file is read more than once; one prompt comes from stdin with prompt=-"
        problems.append(Problem(asked="prompts=-", found="stdin is no file", why=why, fix="prompts=FILE"))
    elif not source.is_file():
        found = "a folder" if source.is_dir() else "not a regular file" if source.exists() else "no such file"
        problems.append(Problem(asked=f"prompts={prompts}", found=found, why="it holds one prompt a line"))
    return [*problems, *(_target_problems(f"output={output}", source, target) if target is not None else ())]


def _target_problems(asked: str, source: Path, target: Path) -> Iterator[Problem]:
    if not target.parent.is_dir():
        yield Problem(asked=asked, found=f"no folder {target.parent} to write to")
    elif target.is_dir():
        yield Problem(asked=asked, found="a folder", fix=f"output={target}/out.jsonl")
    elif target.exists() and not target.is_file():
        why = "a run that was interrupted reads it again, to go on where it stopped"
        yield Problem(asked=asked, found="not a regular file", why=why)
    elif target.exists() and source.exists() and target.samefile(source):
        yield Problem(asked=asked, found="the very file that prompts= names")


def _run_lines(
    llm: LLM, lines: Iterator[Line], total: int, done: int, write: Callable[[dict[str, Any]], None], thinking: bool
) -> int:
    from deepinfer.serving.batch_file import job_of, record

    kept: deque[Line] = deque()  # lines in flight, in order

    def jobs() -> Iterator[Job]:
        for line in lines:
            kept.append(line)
            yield job_of(line, llm.desk, llm.default_params, thinking=thinking, asked=llm.asked)

    errors = tokens = 0
    notices: dict[str, None] = {}  # each once, in order
    started_s = llm.clock()
    with _progress(total, done) as advance:
        for output in llm.run(jobs()):
            write(record(kept.popleft(), output, keeps_prefixes=llm.keeps_prefixes))
            errors += any(answer.error is not None for answer in output.outputs)
            tokens += sum(len(answer.token_ids) for answer in output.outputs)
            notices.update(dict.fromkeys(output.notices))
            advance()
    elapsed_s = llm.clock() - started_s
    for notice in itertools.islice(notices, MOST_NOTICES):
        print(f"deepinfer: {notice}", file=sys.stderr)
    print(
        f"deepinfer: {_results(total - done, errors)}, {tokens} tokens in {elapsed_s:.2f} s: "
        f"{tokens / max(elapsed_s, 1e-9):.0f} tokens/s",
        file=sys.stderr,
    )
    return ExitCode.OTHER if errors else ExitCode.OK


def _print_record(record: dict[str, Any]) -> None:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    print(printable_json(text.encode(errors="backslashreplace").decode()), flush=True)


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
