"""A server under everything at once for a while: streams that must be right, clients that go, nonsense, and engines that die.

Tokens of the constant-step executor are a fixed function of seed, position and the tokens before, so every stream is checked.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from mutants import mutants

from deepinfer.cli.bench_http import Client, Events
from deepinfer.engine.executor_simulated import _FACTORS

if TYPE_CHECKING:
    from running_server import Running

FACTOR, NEWEST, OLDER = (int(factor) for factor in _FACTORS)
PATH = "/v1/completions"
TINY = ("model=v41_tiny", "hardware=cpu")
WORKERS = 12
PATIENCE_S = 300.0  # what takes longer hangs, also on a busy machine


def following(running: Running, seed: int, prompt: list[int], number: int) -> list[int]:
    """What the simulated executor makes of a prompt."""
    tokens, vocab_size = list(prompt), running.service.vocab_size
    for position in range(len(prompt), len(prompt) + number):
        mixed = ((seed + position) * FACTOR + tokens[-1] * NEWEST + tokens[-2] * OLDER) & (1 << 64) - 1
        tokens.append((mixed ^ (mixed >> 29)) % vocab_size)
    return tokens[len(prompt) :]


class Seen:
    """What came of all requests."""

    def __init__(self) -> None:
        self.right = self.left = self.refused = self.lost = self.nonsense = 0
        self.wrong: list[str] = []
        self.over = False  # told from outside: no more than enough

    @property
    def enough(self) -> bool:
        return self.right > 3 and self.left > 0 and self.nonsense > 0


async def stream(client: Client, running: Running, rng: random.Random, seen: Seen) -> None:
    """One stream, read to its end or left in the middle."""
    seed, number = rng.getrandbits(40), rng.choice((1, 7, 40, 120))
    prompt = np.random.default_rng(seed).integers(0, running.service.vocab_size, rng.choice((2, 30, 200))).tolist()
    body = {"model": running.model, "prompt": prompt, "max_tokens": number, "seed": seed, "stream": True}
    body |= {"ignore_eos": True, "return_token_ids": True, "temperature": 1.0}
    events, chunks = Events(), list[Any]()

    def take(data: bytes) -> None:
        chunks.extend(msgspec.json.decode(each) for each in events.push(data) if each != b"[DONE]")

    leaves = rng.random() < 0.3
    try:
        async with asyncio.timeout(rng.random() * 0.05 if leaves else PATIENCE_S):
            reply = await client.post(PATH, msgspec.json.encode(body), take)
    except TimeoutError:
        seen.left += 1
        if not leaves:
            seen.wrong.append(f"no end of {body}")
        return
    failed = next((chunk["error"] for chunk in chunks if "error" in chunk), None)
    if reply.status != 200 or failed:
        known = reply.status in (429, 503) or (failed and failed.get("code") == "engine_lost")
        seen.lost += bool(failed)
        seen.refused += reply.status != 200
        if not known:
            seen.wrong.append(f"HTTP {reply.status} {reply.body[:200]!r} {failed} for {body}")
        return
    got = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
    if got == following(running, seed, prompt, number):
        seen.right += 1
    else:
        seen.wrong.append(f"{len(got)} tokens of {number}, and not the right ones, for {body}")


async def soaked(running: Running, duration_s: float, seed: int, seen: Seen | None = None) -> Seen:
    """Every worker goes on until the time is over and some of everything was seen, which a busy machine needs longer for."""
    seen, until_s = seen or Seen(), time.monotonic() + duration_s
    latest_s = until_s + PATIENCE_S
    nonsense = mutants(10**9, seed, running.model)

    async def work(number: int) -> None:
        client, rng = Client(running.url), random.Random(f"{seed} {number}")
        while not (seen.enough and (seen.over or time.monotonic() > until_s)) and time.monotonic() < latest_s:
            if rng.random() < 0.2:
                mutant = next(nonsense)
                try:
                    async with asyncio.timeout(2.0):  # it may have become a request for very much
                        reply = await client.send(mutant.method, mutant.path, mutant.body, mutant.headers)
                except TimeoutError:
                    continue
                seen.nonsense += 1
                if reply.status >= 500 and reply.status != 503:
                    seen.wrong.append(f"HTTP {reply.status} for {mutant}")
            else:
                await stream(client, running, rng, seen)
        client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            group.create_task(work(number))
    return seen


def check_idle(running: Running) -> None:
    """Nothing is left of all requests, in the server and in the engine."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        stats = running.service.line.stats
        if running.service.admission.num_open == 0 and stats is not None and stats.decoding + stats.waiting == 0:
            assert stats.slots_used == 0
            return
        time.sleep(0.1)
    raise AssertionError(f"{running.service.admission.num_open} requests are open: {running.service.line.stats}")


def test_streams_are_right_beside_clients_that_go_and_nonsense(
    make_server: Callable[..., Running], full: bool, sample_seed: int
) -> None:
    running = make_server("scheduler.max_num_seqs=8", "serving.max_waiting=64")
    seen = asyncio.run(soaked(running, 300 if full else 4, sample_seed))
    assert not seen.wrong, f"--sample-seed={sample_seed}: {len(seen.wrong)}: " + "\n".join(seen.wrong[:5])
    assert seen.enough and seen.lost == 0
    check_idle(running)


def test_the_same_while_engines_die(make_server: Callable[..., Running], full: bool, sample_seed: int) -> None:
    """The engine is a process that is killed again and again, in the middle of it all: no stream is lost or wrong."""
    running = make_server("serving.engine_restarts=1000", "serving.max_waiting=64", in_process=False)
    kills = 20 if full else 1
    seen = asyncio.run(soaked_and_killed(running, kills, sample_seed))
    assert not seen.wrong, f"--sample-seed={sample_seed}: {len(seen.wrong)}: " + "\n".join(seen.wrong[:5])
    assert seen.enough and seen.lost == 0
    running.wait_ready()
    check_idle(running)


async def soaked_and_killed(running: Running, kills: int, seed: int) -> Seen:
    """As `soaked`, until the engine was killed so often and some of everything was seen after the last time."""
    seen, rng = Seen(), random.Random(f"{seed} kills")
    soaking = asyncio.ensure_future(soaked(running, PATIENCE_S * kills, seed, seen))
    for _ in range(kills):
        await asyncio.sleep(0.2 + rng.random() / 4)
        kill_engines(running)
        right = seen.right  # more than a stream of each worker from now on: of another engine
        async with asyncio.timeout(PATIENCE_S):
            while seen.right < right + 2 * WORKERS and not seen.wrong:
                await asyncio.sleep(0.05)
        if seen.wrong:
            break
    seen.over = True
    return await soaking


def kill_engines(running: Running) -> None:
    for pid in running.service.served.engine.world.children.pids():  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_engines_that_are_killed_come_back(
    make_server: Callable[..., Running], server: Running, full: bool, sample_seed: int
) -> None:
    """The engine is a process of its own. Whenever it is killed another one goes on with all requests: their answers are those
    of a server that nobody disturbed."""
    asked = [
        {"prompt": [5 + number, 9, 77], "max_tokens": 60, "seed": number, "temperature": 0.8, "ignore_eos": True}
        for number in range(6)
    ]
    expected = [server.post(PATH, body | {"model": server.model}).json()["choices"][0]["text"] for body in asked]
    requeue = ("parallel=dp2", "executor=distributed", "executor.on_rank_loss=requeue", "executor.max_restarts=1000")
    running = make_server(*requeue, "scheduler.max_num_seqs=8", base=TINY, in_process=False)
    seen = asyncio.run(killed(running, asked, expected, 10 if full else 1, sample_seed))
    assert not seen.wrong, f"--sample-seed={sample_seed}: {len(seen.wrong)}: " + "\n".join(seen.wrong[:5])
    assert seen.right >= len(asked)
    running.wait_ready()
    check_idle(running)


async def killed(running: Running, asked: list[dict[str, Any]], expected: list[str], kills: int, seed: int) -> Seen:
    """All requests over and over, while the engine's process is killed so many times, and once after the last."""
    seen, rng, over = Seen(), random.Random(seed), asyncio.Event()

    async def work(number: int) -> None:
        client = Client(running.url)
        body = msgspec.json.encode(asked[number] | {"model": running.model})
        last = False
        while not last:
            last = over.is_set()
            reply = await client.post(PATH, body)
            if reply.status == 503 and b"restart" in reply.body:
                await asyncio.sleep(0.2)
            elif reply.status != 200:
                seen.wrong.append(f"HTTP {reply.status} {reply.body[:300]!r}")
            elif msgspec.json.decode(reply.body)["choices"][0]["text"] != expected[number]:
                seen.wrong.append(f"another answer to {asked[number]}: {reply.body!r}")
            else:
                seen.right += 1
        client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(len(asked)):
            group.create_task(work(number))
        for _ in range(kills):
            await asyncio.sleep(0.1 + rng.random() / 4)
            kill_engines(running)
            before = seen.right
            async with asyncio.timeout(PATIENCE_S):
                while seen.right < before + 2 * len(asked) and not seen.wrong:
                    await asyncio.sleep(0.05)
        over.set()
    return seen
