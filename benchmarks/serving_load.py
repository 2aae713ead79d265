"""Many streams on one server for a long time: is anything lost, mixed up or kept, and what does a streamed token cost?

    python benchmarks/serving_load.py [--streams 1000] [--minutes 10] [--step-ms 50] [--tokens 1500] [--record]

`deepinfer serve executor=simulated` computes for nobody: a step takes a fixed time, and every token is a fixed function of the
request's seed, the position and the tokens before. So each token that comes back is checked here, by the stream that gets it;
`lost`, `wrong` and `broken` (streams that ended otherwise than asked) must be 0. Server, engine and client share the machine.

`added_*_ms`: from the end of the step that made a token (the engine writes it down, see step_ends/) until the client read it.
`server_cpu_us`: CPU time of the HTTP process by tokens; `engine_cpu_us` that of the engine's process, `client_cpu_us` of this
one. `rss_mb`: of the HTTP process, once a minute, from when all streams run; `rss_growth_mb` is the last less the first. It is
the pools of the allocators that grow to the largest moment so far: what is in use does not grow, see docs/load.md.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from checked_stream import VOCABULARY, Stream
from record import options, record
from server_process import Used, engines_of, used

from deepinfer.cli.bench_http import Client
from deepinfer.cli.bench_server import own_server

HERE = Path(__file__).parent
PATH = "/v1/completions"
STEP_MS, TOKENS = 50.0, 1500
RAMP_S = 3.0  # in which streams begin, one after another
SETTLE_S = 5.0  # until counting begins


class Load:
    """As many streams at once as asked, each followed by another until the time is over."""

    def __init__(self, client: Client, tokens: int, model: str) -> None:
        self.client, self.tokens, self.model = client, tokens, model
        self.ended: list[Stream] = []
        self.open: set[Stream] = set()
        self.lost = self.wrong = self.broken = self.total = 0
        self.first_errors: list[str] = []
        self._seed = 0

    async def run(self, streams: int, until_s: float, ramp_s: float = RAMP_S) -> None:
        """Each of them has one request at least."""
        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(self._follow(number, streams, until_s, ramp_s))

    async def _follow(self, number: int, streams: int, until_s: float, ramp_s: float) -> None:
        await asyncio.sleep(ramp_s * number / streams)
        length = max(1, self.tokens * (number + 1) // streams)  # so that not all end at once
        is_first = True
        while is_first or time.perf_counter() < until_s:
            await self._one(length)
            length, is_first = self.tokens, False

    async def _one(self, length: int) -> None:
        self._seed += 1
        rng = np.random.default_rng(self._seed)
        stream = Stream(self._seed, rng.integers(0, VOCABULARY, 16).tolist(), length)
        body = {"model": self.model, "prompt": stream.prompt, "max_tokens": length, "seed": stream.seed}
        body |= {"stream": True, "ignore_eos": True, "return_token_ids": True, "temperature": 1.0}
        self.open.add(stream)
        try:
            reply = await self.client.post(PATH, msgspec.json.encode(body), stream.push)
            if reply.status != 200:
                stream.error = f"HTTP {reply.status}: {reply.body[:200]!r}"
        except OSError as error:
            stream.error = str(error)
        self.open.discard(stream)
        self._book(stream)
        if stream.error:
            await asyncio.sleep(1.0)

    def _book(self, stream: Stream) -> None:
        self.wrong += stream.wrong
        self.lost += stream.asked - stream.got
        self.broken += stream.broken
        self.total += stream.got
        if stream.error and len(self.first_errors) < 3:
            self.first_errors.append(stream.error)
        self.ended.append(stream)

    def received(self) -> int:
        return self.total + sum(stream.got for stream in self.open)


def added_ms(streams: list[Stream], ends: np.ndarray) -> np.ndarray:
    """For every token, from the end of its step until it was read. A running stream gets a token of every step, so its first
    step is the last one that has no token read before it was made."""
    found = []
    for stream in streams:
        if not stream.times or stream.got < 2:
            continue
        when = np.repeat([at for at, _ in stream.times], [count for _, count in stream.times])
        latest = np.searchsorted(ends, when, side="right") - 1 - np.arange(len(when))
        first = int(latest.min())
        if first >= 0:
            found.append((when - ends[first : first + len(when)]) * 1e3)
    return np.concatenate(found) if found else np.zeros(0)


async def sampled(pids: list[int], until_s: float, every_s: float, load: Load) -> list[tuple[int, list[Used], float]]:
    """Tokens so far, and what each process used, at times; the client's own CPU time beside."""
    found = []
    while True:
        found.append((load.received(), [used(pid) for pid in pids], time.process_time()))
        if time.perf_counter() >= until_s:
            return found
        await asyncio.sleep(min(every_s, max(0.0, until_s - time.perf_counter())))


def arguments_of(streams: int, step_ms: float) -> list[str]:
    return [
        *("executor=simulated", f"executor.step_time_s={step_ms / 1e3}", "speculation=none", "model=v41_tiny"),
        *(f"scheduler.max_num_seqs={streams}", "cache.num_blocks=40000"),
        *(f"serving.max_streams={2 * streams}", f"serving.max_waiting={2 * streams}"),
        *(f"serving.max_connections={2 * streams}", "serving.access_log=false"),
    ]


async def measure(streams: int, minutes: float, step_ms: float, tokens: int, ends_file: str) -> dict:
    async with own_server(arguments_of(streams, step_ms)) as (url, pid):
        watcher = pid
        client = Client(url)
        load = Load(client, tokens, "v41_tiny")
        pids = [watcher, *engines_of(watcher)]
        start_s = time.perf_counter() + RAMP_S + SETTLE_S
        until_s = start_s + minutes * 60
        running = asyncio.create_task(load.run(streams, until_s))
        await asyncio.sleep(start_s - time.perf_counter())
        samples = await sampled(pids, until_s, min(60.0, minutes * 60 / 4), load)
        took_s = time.perf_counter() - start_s
        await running
        client.close()
    ends = np.fromfile(ends_file)
    return figures(load, samples, took_s, ends)


def figures(load: Load, samples: list, took_s: float, ends: np.ndarray) -> dict:
    (first, before, mine), (last, after, mine_after) = samples[0], samples[-1]
    tokens = last - first
    if not tokens:
        sys.exit(f"no token came: {load.first_errors}")
    cost_us = [(b.cpu_s - a.cpu_s) / tokens * 1e6 for a, b in zip(before, after)]
    rss_mb = [round(each[1][0].rss / 1e6, 1) for each in samples]
    added = added_ms(load.ended, ends)
    p50, p99, p999 = np.percentile(added, [50, 99, 99.9]) if len(added) else (None,) * 3
    return {
        "requests": len(load.ended),
        "tokens": load.total,
        "lost": load.lost,
        "wrong": load.wrong,
        "broken": load.broken,
        "errors": load.first_errors,
        "tokens_per_s": round(tokens / took_s),
        "server_cpu_us": round(cost_us[0], 1),
        "engine_cpu_us": round(sum(cost_us[1:]), 1),
        "client_cpu_us": round((mine_after - mine) / tokens * 1e6, 1),
        "added_p50_ms": p50 and round(p50, 2),
        "added_p99_ms": p99 and round(p99, 2),
        "added_p999_ms": p999 and round(p999, 2),
        "rss_mb": rss_mb,
        "rss_growth_mb": round(rss_mb[-1] - rss_mb[0], 1),
        "step_ms_mean": round(float(np.diff(ends).mean()) * 1e3, 2) if len(ends) > 1 else None,
    }


def run(streams: int, minutes: float, step_ms: float = STEP_MS, tokens: int = TOKENS) -> dict:
    """The figures of a load on a server of its own."""
    with tempfile.NamedTemporaryFile() as ends:
        os.environ["STEP_ENDS_FILE"] = ends.name
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(HERE / "step_ends"), os.environ.get("PYTHONPATH")])
        )
        return uvloop.run(measure(streams, minutes, step_ms, tokens, ends.name))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--step-ms", type=float, default=STEP_MS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    asked = parser.parse_args()
    found = run(asked.streams, asked.minutes, asked.step_ms, asked.tokens)
    record(Path(__file__).stem, streams=asked.streams, minutes=asked.minutes, step_ms=asked.step_ms, **found)
    if found["lost"] or found["wrong"] or found["broken"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
