"""What the prefix cache and speculation give agents: the same conversations through the server, with each on and off.

    python benchmarks/agentic_trace.py [--agents 4] [--turns 8] [--concurrency 2] [--record]

Every agent has the same long instructions, then turns of its own: each asks a task of the kinds that the tiny model was trained
on, behind what a tool "read", and repeats all that was said before, as agents do. Requests go to /v1/chat/completions of
`deepinfer serve` and carry a seed; at each setting the answers must be those of the plainest one, token for token, or the run
fails. One line a setting: `ttft_ms`, `tpot_ms`, `e2e_ms` are means, `cache_hit_share` is of all prompt tokens, `accept_length`
tokens of a round with drafts; `speedup` is the plainest setting's time by this one's, `cpu_speedup` the same of the CPU time of
the engine's process, which other work on the machine does not lengthen.
"""

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
from record import options, record
from server_process import engines_of, used

from deepinfer.cli.bench_drive import Answering, Served
from deepinfer.cli.bench_http import Client
from deepinfer.cli.bench_serve_figures import client_figures, server_figures
from deepinfer.cli.bench_server import counters, growth, model_of, own_server
from deepinfer.config.compose import load
from deepinfer.engine.load import TimedRequest

PATH = "/v1/chat/completions"
SETTINGS = {
    "neither": ("cache=paged", "speculation=none"),
    "prefix cache": ("cache=prefix", "speculation=none"),
    "speculation": ("cache=paged", "speculation=dspark"),
    "both": ("cache=prefix", "speculation=dspark"),
}
NAMES = ("Emma", "Noah", "Mia", "Liam", "Ava", "Lucas")
CITIES = ("Oslo", "Lima", "Rome", "Cairo", "Delhi", "Paris")
RULES = "Answer the newest task only, in one line, and never repeat the notes. "


def instructions(rng: random.Random, lines: int = 40) -> str:
    """Some hundred tokens that all agents share."""
    notes = [
        f"Note {number}: {rng.choice(NAMES)} is {rng.randrange(20, 70)} and lives in {rng.choice(CITIES)}."
        for number in range(lines)
    ]
    return RULES + "\n".join(notes)


def task(rng: random.Random) -> str:
    """One request of a kind that the tiny model knows."""
    kind = rng.randrange(5)
    if kind == 0:
        return f"What is {rng.randrange(100, 999)} + {rng.randrange(100, 999)}?"
    if kind == 1:
        return f"Sort this list: {', '.join(str(rng.randrange(1, 99)) for _ in range(5))}"
    if kind == 2:
        return f"Make a JSON object: name {rng.choice(NAMES)}, age {rng.randrange(20, 70)}, city {rng.choice(CITIES)}"
    return "Tell me a short story about a fox."


def asked(rng: random.Random) -> str:
    """A turn: what a tool brought, then the task."""
    read = [
        f"{rng.choice(NAMES)} wrote to {rng.choice(NAMES)} from {rng.choice(CITIES)}." for _ in range(rng.randrange(6))
    ]
    return "\n".join([*read, task(rng)])


class Agents:
    """The conversations; what was answered is kept in the order of agents and turns."""

    def __init__(self, client: Client, model: str, arguments: argparse.Namespace) -> None:
        self._client, self._model, self._arguments = client, model, arguments
        self.served: list[Served] = []
        self.answers: list[list[tuple[str, list[int], int]]] = [[] for _ in range(arguments.agents)]

    async def run(self) -> float:
        places, started_s = asyncio.Semaphore(self._arguments.concurrency), time.perf_counter()

        async def one(agent: int) -> None:
            async with places:
                await self._talk(agent)

        async with asyncio.TaskGroup() as group:
            for agent in range(self._arguments.agents):
                group.create_task(one(agent))
        return time.perf_counter() - started_s

    async def _talk(self, agent: int) -> None:
        rng = random.Random(agent)
        messages = [{"role": "system", "content": instructions(random.Random(1234))}]
        for turn in range(self._arguments.turns):
            messages.append({"role": "user", "content": asked(rng)})
            served = await self._ask(messages, seed=agent * 1000 + turn)
            self.answers[agent].append((served.text, served.token_ids, served.timed.num_tokens))
            messages.append({"role": "assistant", "content": served.text})

    async def _ask(self, messages: list[dict[str, str]], seed: int) -> Served:
        served = Served(TimedRequest(np.zeros(0, dtype=np.int64)))
        answering = Answering(served)
        body = {"model": self._model, "messages": messages, "max_tokens": 96, "seed": seed, "stream": True}
        body |= {"temperature": 0.6, "stream_options": {"include_usage": True}, "return_token_ids": True}
        served.timed.started_s = time.perf_counter()
        reply = await self._client.post(PATH, msgspec.json.encode(body), answering.push)
        if reply.status != 200 or served.timed.error or not answering.done:
            sys.exit(f"no answer: HTTP {reply.status} {reply.body[:300]!r} {served.timed.error}")
        if len(served.token_ids) != served.timed.num_tokens:
            sys.exit(
                f"{len(served.token_ids)} token ids of {served.timed.num_tokens}: answers cannot be compared by token"
            )
        served.text = "".join(answering.parts)
        self.served.append(served)
        return served


async def measured(overrides: tuple[str, ...], arguments: argparse.Namespace) -> tuple[dict, list]:
    async with own_server(["model=v41_tiny", "hardware=cpu", *overrides]) as (url, pid):
        client = Client(url)
        model, (engine,) = await model_of(client), engines_of(pid)
        warm = {"model": model, "prompt": [9] * 40, "max_tokens": 16, "ignore_eos": True}
        await client.post("/v1/completions", msgspec.json.encode(warm))
        before, cpu_s = await counters(client), used(engine).cpu_s
        agents = Agents(client, model, arguments)
        duration_s = await agents.run()
        after, cpu_s = await counters(client), used(engine).cpu_s - cpu_s
        client.close()
    found = client_figures(agents.served, duration_s, load().workload) | server_figures(growth(before, after))
    return found | {"engine_cpu_s": cpu_s}, agents.answers


def told(found: dict) -> dict:
    names = (
        "completed",
        "total_input_tokens",
        "total_output_tokens",
        "duration",
        "output_throughput",
        "cache_hit_share",
        "engine_cpu_s",
    )
    kept = {name: found[name] for name in names} | {"accept_length": found.get("accept_length")}
    kept |= {
        f"{short}_ms": found[f"mean_{name}_ms"] for short, name in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el"))
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in kept.items()}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=2)
    arguments = parser.parse_args()
    plain = None
    for name, overrides in SETTINGS.items():
        found, answers = asyncio.run(measured(overrides, arguments))
        plain = plain or (answers, found)
        if answers != plain[0]:
            sys.exit(f"{name}: answers differ from those of the plainest setting: on must equal off")
        same = {"agents": arguments.agents, "turns": arguments.turns, "concurrency": arguments.concurrency}
        faster = {
            "speedup": round(plain[1]["duration"] / found["duration"], 3),
            "cpu_speedup": round(plain[1]["engine_cpu_s"] / found["engine_cpu_s"], 3),
        }
        record(Path(__file__).stem, setting=name, **same, **told(found), **faster, same_answers=True)


if __name__ == "__main__":
    main()
