"""`deepinfer run_batch input=FILE output=FILE`: answer a file of API requests by the server's own routes, without a socket.

So a line gets what the same request gets online. A line that fails is a record in the file of failures and stops no other; an
engine that is lost stops the run, and lines without an answer get no record.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer.api import plan_to_run
from deepinfer.cli.run_batch_files import BatchFiles
from deepinfer.cli.run_batch_lines import Unanswered, asked_of, record_of
from deepinfer.cli.sweep_told import counted
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.paths import user_path
from deepinfer.config.tasks import RunBatch
from deepinfer.plan import render
from deepinfer.sampling.params import asked_sampling
from deepinfer.serving.batch_file import read_lines
from deepinfer.serving.result_file import ForeignOutput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

    from deepinfer.cli.run_batch_lines import Asked
    from deepinfer.config.argv import Invocation
    from deepinfer.config.serving import Serving
    from deepinfer.config.specs import Spec
    from deepinfer.plan.types import Plan
    from deepinfer.serving.batch_file import Line
    from deepinfer.serving.http.service import Service


def run(spec: Spec, invocation: Invocation) -> int:
    """Answer every line that has no record yet. 1 where any line failed, now or in an earlier run, else 0. Raises Refused."""
    assert isinstance(spec.task, RunBatch), "this is the verb of this task"
    source, output, errors = _paths(invocation)
    plan = plan_to_run(spec, invocation.choices, invocation.overrides)
    settings = _settings(plan, spec)
    lines = list(read_lines(source, settings))
    try:
        files = BatchFiles(output, errors, lines)
    except ForeignOutput as error:
        raise Refused([Problem(asked=f"output={output}", found=str(error))]) from error
    with files:
        left = [line for line in lines if line.number not in files.done]
        if files.done:
            print(f"deepinfer: {len(files.done)} of {counted(len(lines), 'line')} are done already", file=sys.stderr)
        try:
            if left:
                print(render.summary(plan), file=sys.stderr, flush=True)
                asyncio.run(_answered(spec, plan, invocation, _asked(lines, files.done), files))
        except KeyboardInterrupt:
            print(f"deepinfer: interrupted; the same command goes on from what {output} holds", file=sys.stderr)
            raise
        except Unanswered as error:
            raise Refused([_stopped(str(error), len(lines) - len(files.done), output)]) from error
        if files.failed:
            print(f"deepinfer: {counted(files.failed, 'request')} failed: {errors} says why", file=sys.stderr)
        return ExitCode.OTHER if files.failed else ExitCode.OK


def _paths(invocation: Invocation) -> tuple[Path, Path, Path]:
    """Input, output and failures. Raises Refused with all that is wrong with them."""
    problems = []
    for name in ("input", "output"):
        if not getattr(invocation, name):
            fix = "run_batch input=requests.jsonl output=answers.jsonl"
            problems.append(Problem(asked="run_batch", found=f"no {name}= is given", fix=fix))
    if problems:
        raise Refused(problems)
    source, output = user_path(invocation.input or "", "input"), user_path(invocation.output or "", "output")
    beside = output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")
    errors = user_path(invocation.errors, "errors") if invocation.errors else beside
    if not source.is_file():
        found = "a folder" if source.is_dir() else "not a regular file" if source.exists() else "no such file"
        problems.append(Problem(asked=f"input={source}", found=found, why="it holds one request a line"))
    for name, path in (("output", output), ("errors", errors)):
        if not path.parent.is_dir():
            problems.append(Problem(asked=f"{name}={path}", found=f"no folder {path.parent} to write to"))
        elif path.is_dir():
            problems.append(Problem(asked=f"{name}={path}", found="a folder", fix=f"{name}={path}/{name}.jsonl"))
    if len({path.resolve() for path in (source, output, errors)}) < 3:
        problems.append(Problem(asked="input, output and errors", found="two of them are the same file"))
    if problems:
        raise Refused(problems)
    return source, output, errors


def _stopped(cause: str, num_left: int, output: Path) -> Problem:
    left = f"{counted(num_left, 'line')} without an answer, none of them recorded as failed"
    why = f"{left}: the same command goes on from what {output} holds"
    return Problem(asked="run_batch", found=f"it stopped: {cause}", why=why, code=ExitCode.DEVICE)


def _settings(plan: Plan, spec: Spec) -> str:
    """What tells apart runs whose answers may differ."""
    sampling = msgspec.json.encode(plan.sampling, order="deterministic").decode()
    return " ".join([plan.numerics_digest, sampling, str(spec.serving.thinking)])


def _asked(lines: list[Line], done: set[int]) -> Iterator[tuple[Line, Asked]]:
    """What is left to do; lines that are done count for what custom_ids were given."""
    seen: set[str] = set()
    for line in lines:
        asked = asked_of(line, seen)
        if line.number not in done:
            yield line, asked


async def _answered(
    spec: Spec, plan: Plan, invocation: Invocation, asked: Iterator[tuple[Line, Asked]], files: BatchFiles
) -> None:
    """All of them, as many at once as asked, written in their order."""
    service, app = await _opened(spec, plan, invocation)
    total = len(files.done)
    assert isinstance(spec.task, RunBatch)
    limit = spec.task.concurrency
    at_once = limit if limit != "auto" else 2 * plan.scheduler.max_num_seqs
    running: deque[asyncio.Task[tuple[dict[str, Any], bool]]] = deque()
    started_s, written = time.monotonic(), 0
    try:
        with tqdm(unit="request", initial=total, disable=not sys.stderr.isatty(), leave=False) as bar:
            places = asyncio.Semaphore(at_once)
            for line, one in asked:
                await places.acquire()
                task = asyncio.ensure_future(record_of(line, one, app))
                task.add_done_callback(lambda _: places.release())
                running.append(task)
                while running and running[0].done():
                    _write(files, running.popleft().result(), bar)
                    written += 1
            while running:
                _write(files, await running.popleft(), bar)
                written += 1
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await service.close()
    took_s = time.monotonic() - started_s
    print(f"deepinfer: {counted(written, 'request')} in {took_s:.1f} s", file=sys.stderr)


def _write(files: BatchFiles, record: tuple[dict[str, Any], bool], bar: Any) -> None:
    files.write(record[0], failed=record[1])
    bar.update()


def own_settings(serving: Serving) -> Serving:
    """A server's settings for one that nobody else can ask: task.concurrency alone says how much runs, and nothing is kept."""
    no_limit = sys.maxsize
    return msgspec.structs.replace(
        serving,
        api_keys=None,
        access_log=False,
        responses_path=None,
        max_waiting=no_limit,
        max_streams=no_limit,
        max_held_bytes=no_limit,
    )


async def _opened(spec: Spec, plan: Plan, invocation: Invocation) -> tuple[Service, ASGIApp]:
    """The service of this plan with its engine ready, for this process alone, and its routes. Raises what the engine's start
    raised."""
    from deepinfer.cli.serve_start import service_of
    from deepinfer.serving.engine_line import NotServing
    from deepinfer.serving.http.app import create_app

    service = service_of(plan, own_settings(spec.serving), asked=asked_sampling(invocation.overrides))
    app = create_app(service)  # before it opens: routes open what they keep with it
    await service.open()
    try:
        await service.ready()
    except NotServing:
        await service.close()
        raise (service.line.failure or RuntimeError(service.line.cause)) from None
    return service, app
