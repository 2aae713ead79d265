"""`deepinfer bench task.target=serve`: send the workload over HTTP, as clients do, and tell what they saw.

Answers run to their full length. Requests come one as another ends (task.concurrency), by a clock (task.request_rate), or as a
trace says (workload=trace); task.turns makes conversations of them, whose turns repeat all that was said before.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from tqdm.std import tqdm  # type: ignore[import-untyped]

from deepinfer.cli.bench_drive import Driver
from deepinfer.cli.bench_http import Client
from deepinfer.cli.bench_picture import FILE as PICTURE
from deepinfer.cli.bench_picture import draw
from deepinfer.cli.bench_serve_figures import client_figures, serve_report, server_figures
from deepinfer.cli.bench_serve_load import talks_of
from deepinfer.cli.bench_server import ServerFailed, counters, growth, model_of, own_server, serve_arguments
from deepinfer.cli.bench_talks import Talk
from deepinfer.cli.other_server import read_key, refuse_no_address
from deepinfer.cli.out_folder import naming, open_folder
from deepinfer.cli.pareto import how_to_plot
from deepinfer.cli.streams import printable_json
from deepinfer.config.errors import ExitCode, Problem, Refused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from deepinfer.config.argv import Invocation
    from deepinfer.config.specs import Spec
    from deepinfer.config.tasks import Bench
    from deepinfer.plan.types import Plan

FILE = "bench_serve.jsonl"
WARM_UP_TOKENS = 8  # longest answer of a request that is not counted


def run(spec: Spec, task: Bench, plan: Plan, invocation: Invocation, described: dict[str, Any]) -> int:
    """Measure and tell: the table or the JSON line on stdout; in a folder a line more and the picture."""
    folder = None if invocation.out is None else open_folder(invocation.out)
    result = described | measured(spec, task, plan, invocation)
    if folder is not None:
        with naming(folder / FILE), (folder / FILE).open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
    text = msgspec.json.encode(result).decode()
    print(printable_json(text) if invocation.format == "json" else serve_report(result))
    if folder is not None:
        told = f"picture: {folder / PICTURE}" if draw(result, folder / PICTURE) else how_to_plot()
        print(f"deepinfer: {told}", file=sys.stderr)
    for line in dict.fromkeys(result["errors"]):
        print(f"deepinfer: {line}", file=sys.stderr)
    return ExitCode.OTHER if result["failed"] else ExitCode.OK


def measured(spec: Spec, task: Bench, plan: Plan, invocation: Invocation) -> dict[str, Any]:
    """Run the load after its warm-up: what clients saw, what the server counted. Raises Refused where no server answers."""
    if task.base_url is not None:
        refuse_no_address(task.base_url)
    talks, notes = talks_of(spec, task, plan)
    for note in notes:
        print(f"deepinfer: {note}", file=sys.stderr, flush=True)
    try:
        result = asyncio.run(_measured(spec, task, plan, talks, invocation))
    except (OSError, ServerFailed) as error:
        asked = f"task.base_url={task.base_url}" if task.base_url else "a server of this plan"
        found = f"no answer: {error}" if isinstance(error, OSError) else str(error)
        raise Refused([Problem(asked=asked, found=found, code=ExitCode.NETWORK)]) from error
    result["notes"] = notes
    return result


async def _measured(spec: Spec, task: Bench, plan: Plan, talks: list[Talk], invocation: Invocation) -> dict[str, Any]:
    async with _server(task, invocation) as url:
        client = Client(url, api_key=read_key(task.api_key_file))
        try:
            fields = {"ignore_eos": True, "seed": task.seed}
            if task.turns > 1:  # the next turn repeats the answer, token by token
                fields["return_token_ids"] = True
            model = await model_of(client)
            await _warm_up(Driver(client, model, fields), talks, task)
            before = await counters(client)
            with tqdm(total=task.num_requests, unit="request", disable=not sys.stderr.isatty(), leave=False) as bar:
                driver = Driver(client, model, fields, on_end=lambda _: bar.update())
                concurrency = _concurrency(task, plan, talks)
                duration_s = await driver.run(talks, concurrency)
            after = await counters(client)
        finally:
            client.close()
    told = {"base_url": url, "served_model": model, "max_concurrency": concurrency, "arrivals": task.arrivals}
    return told | client_figures(driver.served, duration_s, spec.workload) | server_figures(growth(before, after))


@asynccontextmanager
async def _server(task: Bench, invocation: Invocation) -> AsyncIterator[str]:
    if task.base_url is not None:
        yield task.base_url
        return
    started_s = time.monotonic()
    async with own_server(serve_arguments(invocation)) as (url, _):
        print(f"deepinfer: a server is ready after {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)
        yield url


async def _warm_up(driver: Driver, talks: list[Talk], task: Bench) -> None:
    """One after another, so that the first leaves in a prefix cache what the load will find there."""
    turns = [msgspec.structs.replace(talk.turns[0]) for talk in talks[: task.warm_up]]
    for turn in turns:
        turn.output_tokens = min(turn.output_tokens, WARM_UP_TOKENS)
    await driver.run([Talk([turn]) for turn in turns], 1)
    failed = next((served.timed.error for served in driver.served if served.timed.error), None)
    if failed is not None:
        raise Refused([Problem(asked="the load", found=failed, why="a warm-up request failed", code=ExitCode.OTHER)])


def _concurrency(task: Bench, plan: Plan, talks: list[Talk]) -> int | None:
    """Conversations in flight at most; None for no limit."""
    if task.concurrency != "auto":
        return task.concurrency
    by_clock = any(talk.due_s is not None for talk in talks)
    return None if by_clock else min(len(talks), plan.scheduler.max_num_seqs)
