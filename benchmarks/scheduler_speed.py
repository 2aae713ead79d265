"""Our scheduler beside vLLM's, both without a model: µs per step and per request of steady decoding at B = 256 and 1,024.

    python benchmarks/scheduler_speed.py [--batches 256 1024] [--peer-block-tokens 128] [--peer .venv-vllm/bin/python]

vLLM runs in an environment of its own, made by `bash benchmarks/vllm_environment.sh`; without it our side runs alone. Each
side has one thread, its turns alternate with the other's, and CPU time is counted, so that a busy machine tips nothing. All
prompts are through, nothing is found in a prefix cache, and at every step some answers need a new block. `asynchronous`
schedules a step before the last one's results, as vLLM does by default; of 5 `drafts` 2.5 are accepted in the mean; with
`prefix_cache` full blocks are hashed and kept, also vLLM's default.

`speedup` compares what both do: ours schedule + commit + the events of the engine, vLLM's schedule + update_from_output (which
makes its events) + update_draft_token_ids where its engine calls that. `scheduler_speedup` leaves our events out. Means over
the steps are compared, without the first 5 of a turn, which find the other side's data in the processor's caches;
`best_speedup` compares the fastest steps. Ours hands out whole block tables, vLLM's the new blocks alone.
"""

import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from record import options, record
from scheduler import BLOCK_TOKENS, PROMPT_TOKENS, full_engine, phases_of_step

from deepinfer.engine.engine import Engine

HERE = Path(__file__).parent
ACCEPTANCE = 0.775  # of one draft after the others: 2.5 of 5 in the mean, as the driver gives vLLM's
TURN_WARM_UP = 5  # steps
Times = dict[str, np.ndarray]  # phase → CPU seconds of every step


class Case(NamedTuple):
    """What is switched on, on both sides."""

    drafts: int = 0
    asynchronous: bool = False
    prefix_cache: bool = False


CASES = (
    Case(),
    Case(asynchronous=True),
    Case(asynchronous=True, prefix_cache=True),
    Case(5),
    Case(5, asynchronous=True),
)


class Peer:
    """vLLM's scheduler in another process, which waits while we run."""

    def __init__(self, python: Path, case: Case, batch: int, length: int, block_tokens: int) -> None:
        words = [f"--batch={batch}", f"--prompt={PROMPT_TOKENS}", f"--length={length}", f"--drafts={case.drafts}"]
        words += ["--asynchronous"] * case.asynchronous + ["--prefix-cache"] * case.prefix_cache
        self._process = subprocess.Popen(
            [python, HERE / "vllm_scheduler_driver.py", f"--block-tokens={block_tokens}", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.versions = self._answer()

    def steps(self, count: int) -> Times:
        assert self._process.stdin is not None
        print(json.dumps({"steps": count}), file=self._process.stdin, flush=True)
        return {name: np.array(values) for name, values in self._answer().items()}

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        words = " ".join(str(word) for word in self._process.args)
        sys.exit(f"vLLM's scheduler ended with {self._process.wait()}; to see why, type: {words} </dev/null")


def our_steps(engine: Engine, count: int) -> Times:
    schedule_s, commit_s, events_s, num_tokens = np.array(
        [phases_of_step(engine, time.thread_time) for _ in range(count)]
    ).T
    return {"schedule_s": schedule_s, "commit_s": commit_s, "events_s": events_s, "num_tokens": num_tokens}


def joined(rounds: list[Times]) -> Times:
    return {name: np.concatenate([times[name][TURN_WARM_UP:] for times in rounds]) for name in rounds[0]}


def us(step_s: np.ndarray) -> float:
    return round(float(step_s.mean()) * 1e6, 1)


def figures(side: str, times: Times, batch: int) -> tuple[np.ndarray, dict[str, float]]:
    """Seconds of whole steps, and means over them and over their phases."""
    phases = {name.removesuffix("_s"): values for name, values in times.items() if name.endswith("_s")}
    step_s = sum(phases.values(), start=np.zeros(1))
    return step_s, {
        f"{side}_us": us(step_s),
        f"{side}_us_per_request": round(float(step_s.mean()) * 1e6 / batch, 4),
        f"{side}_median_us": round(float(np.median(step_s)) * 1e6, 1),
        f"{side}_best_us": round(float(step_s.min()) * 1e6, 1),
        **{f"{side}_{name}_us": us(values) for name, values in phases.items()},
        f"{side}_tokens_per_request": round(float(times["num_tokens"].mean()) / batch, 2),
    }


def measure(python: Path | None, case: Case, batch: int, block_tokens: int, rounds: int, steps: int) -> None:
    """Warms both sides up for one round, then alternates."""
    length = PROMPT_TOKENS + BLOCK_TOKENS + (1 + case.drafts) * ((rounds + 1) * (TURN_WARM_UP + steps) + 8)
    engine = full_engine(
        batch,
        length,
        async_depth=int(case.asynchronous),
        drafts=case.drafts,
        acceptance=ACCEPTANCE,
        prefix=case.prefix_cache,
    )
    peer = Peer(python, case, batch, length, block_tokens) if python else None
    gc.collect()
    gc.freeze()  # as the peer does
    ours, theirs = [], []
    for _ in range(rounds + 1):
        ours.append(our_steps(engine, TURN_WARM_UP + steps))
        if peer is not None:
            theirs.append(peer.steps(TURN_WARM_UP + steps))
    gc.unfreeze()
    our_times = joined(ours[1:])
    our_s, values = figures("deepinfer", our_times, batch)
    found: dict[str, Any] = {**case._asdict(), **values}
    if peer is not None:
        peer.close()
        peer_s, values = figures("vllm", joined(theirs[1:]), batch)
        scheduler_s = our_times["schedule_s"] + our_times["commit_s"]
        found |= values | {
            "speedup": round(float(peer_s.mean() / our_s.mean()), 1),
            "median_speedup": round(float(np.median(peer_s) / np.median(our_s)), 1),
            "best_speedup": round(float(peer_s.min() / our_s.min()), 1),
            "scheduler_speedup": round(float(peer_s.mean() / scheduler_s.mean()), 1),
            "block_tokens": BLOCK_TOKENS,
            "vllm_block_tokens": block_tokens,
            "vllm_versions": peer.versions,
        }
    record(Path(__file__).stem, batch=batch, **found, steps=rounds * steps)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--peer-block-tokens", type=int, default=BLOCK_TOKENS, help="16 is vLLM's default and slower")
    parser.add_argument("--peer", type=Path, default=HERE.parent / ".venv-vllm" / "bin" / "python")
    asked = parser.parse_args()
    python = asked.peer
    if not python.is_file():
        print(f"no vLLM at {python}: ours alone; type: bash benchmarks/vllm_environment.sh", file=sys.stderr)
        python = None
    for batch in asked.batches:
        for case in CASES:
            measure(python, case, batch, asked.peer_block_tokens, asked.rounds, asked.steps)


if __name__ == "__main__":
    main()
