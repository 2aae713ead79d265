"""Thousands of wrong requests over all routes: no 5xx, the server lives, and a neighbour's answer stays the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
from mutants import Mutant, mutants
from raw_dialect import until

from deepinfer.cli.bench_http import Client, Reply

if TYPE_CHECKING:
    from running_server import Running

AT_ONCE = 8
PATIENCE_S = 15.0  # a mutant may have become a request for very much: then its client goes
NEIGHBOUR = {"prompt": [5, 6, 7, 8], "max_tokens": 24, "seed": 3, "temperature": 0.9, "ignore_eos": True}


async def neighbour(client: Client, model: str) -> str:
    reply = await client.post("/v1/completions", msgspec.json.encode(NEIGHBOUR | {"model": model}))
    assert reply.status == 200, reply.body
    return str(msgspec.json.decode(reply.body)["choices"][0]["text"])


async def answered(client: Client, mutant: Mutant) -> Reply | None:
    """None where the client lost patience."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await client.send(mutant.method, mutant.path, mutant.body, mutant.headers)
    except TimeoutError:
        return None


def wrong_with(mutant: Mutant, reply: Reply | None) -> str:
    """What is wrong with an answer to a wrong request; "" where all is well."""
    if reply is None:
        return ""
    if reply.status >= 500 or not reply.status:
        return f"HTTP {reply.status}: {reply.body[:300]!r}"
    if b"internal_error" in reply.body or b"Traceback" in reply.body:
        return f"a fault of ours: {reply.body[-300:]!r}"
    if (
        reply.status >= 400
        and mutant.method != "HEAD"
        and not reply.headers.get("content-type", "").startswith(("application/json", "text/html", "text/plain"))
    ):
        return f"HTTP {reply.status} as {reply.headers}"
    if reply.status >= 400 and mutant.method == "POST":
        return "" if b'"message"' in reply.body else f"no message: {reply.body[:300]!r}"
    return ""


async def attacked(running: Running, number: int, seed: int) -> tuple[list[str], dict[int, int]]:
    """What went wrong, and how often each status was given."""
    client, failures, statuses = Client(running.url), list[str](), dict[int, int]()
    before = await neighbour(client, running.model)
    wrong_ones = mutants(number, seed, running.model)

    async def attack() -> None:
        for mutant in wrong_ones:
            reply = await answered(client, mutant)
            statuses[reply.status if reply else 0] = statuses.get(reply.status if reply else 0, 0) + 1
            if said := wrong_with(mutant, reply):
                failures.append(f"{mutant}\n  -> {said}")

    async with asyncio.TaskGroup() as group:
        attackers = [group.create_task(attack()) for _ in range(AT_ONCE)]
        while not all(task.done() for task in attackers):
            assert await neighbour(client, running.model) == before
            await asyncio.sleep(0.2)
    assert await neighbour(client, running.model) == before
    client.close()
    return failures, statuses


def test_no_request_breaks_the_server(server: Running, full: bool, sample_seed: int) -> None:
    number = 10_000 if full else 300
    failures, statuses = asyncio.run(attacked(server, number, sample_seed))
    assert not failures, f"{len(failures)} of {number} with --sample-seed={sample_seed}:\n" + "\n".join(failures[:20])
    assert sum(statuses.values()) == number
    assert statuses.get(200, 0) > number / 50 and statuses.get(400, 0) > number / 5, statuses  # both sides are tried
    until(lambda: server.service.admission.num_open == 0, within_s=60.0)
    assert server.health()[0] == 200
