"""Tokens/s of the real engine with every way to speculate, beside none, on the shipped tiny model's own tasks.

    python benchmarks/speculation.py [--quick] [--batches 1 8 32] [--families json …] [--pairs coupled/0 …] [--record]

Sides of a cell: none · ngram · dspark_fixed with 1 … 5 drafts checked · dspark with the step times that it measured at its
start (and what it learnt since). Their back-off is off, so that what does not pay shows. A cell is a family of held-out
prompts, so many at once, a way to verify and a temperature. Prompts are computed first and not timed; then the sides take
turns, a few steps each, until every answer is through, so that a busy machine slows all alike. `ratio` is tokens/s over those
of none; `share_of_best_fixed` over those of the best of the fixed lengths, which nobody knows beforehand. The same by processor
seconds, `cpu_`, leaves out what others take of a shared machine.

`accepted_length` counts the token after the drafts; `acceptance` is that of each draft given those before it. At the end
`calibration_error` says how far confidences as served (temperature, verification, engine) are from what was accepted: |mean
confidence - share accepted|, averaged over drafts in 20 bins; `step_time_error` is the median of |predicted - measured| over
measured for steps of dspark, predicted before the step is known; `cpu_` again in processor time, learnt from that alone. With
rejection at temperature 0 drafts are judged as with coupled, so that pair is left out.
"""

import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from draft_watch import Watch, calibration_error
from record import options, record
from tiny_prompts import FAMILIES, prompts

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.executor_local import LocalExecutor
from deepinfer.engine.stats import EngineStats
from deepinfer.interfaces import SamplingParams
from deepinfer.plan.resolve import resolve

STEPS_PER_TURN = 4
DEPTH = 5
PAIRS = ("coupled/0", "coupled/1", "rejection/1")
ANSWER_TOKENS = {1: 64, 8: 48, 32: 32}  # at most, by the number of sequences
SIDES = {
    "none": ("speculation=none",),
    "ngram": ("speculation=ngram", "speculation.back_off=false"),
    **{
        f"fixed-{n}": ("speculation=dspark_fixed", f"speculation.verify_length={n}", "speculation.back_off=false")
        for n in range(1, DEPTH + 1)
    },
    "dspark": ("speculation=dspark", "speculation.back_off=false"),
}
QUICK = ("none", "fixed-2", "fixed-5", "dspark")


@dataclass
class Side:
    name: str
    graph: EngineGraph
    watch: Watch
    spent_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0

    def start(self, prompts_ids: list[np.ndarray], params: SamplingParams) -> EngineStats:
        """All answers begin; none has gone far."""
        engine = self.graph.engine
        self.spent_s, self.cpu_s, self.steps = 0.0, 0.0, 0
        for ids in prompts_ids:
            engine.submit(ids, params)
        while (stats := engine.stats()).waiting or stats.prefilling:
            engine.step()
        return stats

    def turn(self) -> bool:
        """A few steps; whether there are more."""
        engine, started_s, started_cpu_s = self.graph.engine, time.perf_counter(), time.process_time()
        self.watch.timed = True
        for _ in range(STEPS_PER_TURN):
            if engine.has_work:
                engine.step()
                self.steps += 1
        self.spent_s += time.perf_counter() - started_s
        self.cpu_s += time.process_time() - started_cpu_s
        self.watch.timed = False
        return engine.has_work


def build(name: str, overrides: tuple[str, ...], verify: str, threads: int) -> Side:
    chosen = [f"speculation.verify={verify}"] if name != "none" else []
    fixed = ["hardware=cpu", "model=v41_tiny", f"model.threads={threads}", "scheduler.max_num_seqs=32"]
    spec = load(*fixed, *overrides, *chosen)
    graph, watch = build_graph(resolve(spec, probe(spec))), Watch()
    assert isinstance(graph.executor, LocalExecutor)
    watch.follow(graph.executor)
    curve = getattr(graph.engine.scheduler.lengths, "curve", None)
    if curve is not None:
        watch.follow_curve(curve)
    return Side(name, graph, watch)


def run_cell(sides: list[Side], family: str, batch: int, temperature: float, rounds: int) -> list[dict]:
    """One line for each side, over `rounds` batches of answers."""
    params = SamplingParams(max_tokens=ANSWER_TOKENS[batch], temperature=temperature, seed=5)
    ids = prompts(family, rounds * batch)
    totals: dict[str, dict[str, Any]] = {side.name: defaultdict(float) for side in sides}
    for first in range(0, len(ids), batch):
        before = {side.name: side.start(ids[first : first + batch], params) for side in sides}
        going = list(sides)
        while going:
            going = [side for side in going if side.turn()]
        for side in sides:
            add(totals[side.name], before[side.name], side.graph.engine.stats(), side)
    lines = [{"side": side.name, **figures(totals[side.name])} for side in sides]
    for clock in ("", "cpu_"):
        speed = {line["side"]: line[f"{clock}tokens_per_s"] for line in lines}
        best_fixed = max((value for name, value in speed.items() if name.startswith("fixed")), default=None)
        for line in lines:
            line[f"{clock}ratio"] = round(speed[line["side"]] / speed["none"], 3)
            if line["side"] == "dspark" and best_fixed:
                line[f"{clock}share_of_best_fixed"] = round(speed["dspark"] / best_fixed, 3)
    return lines


def add(total: dict[str, Any], before: EngineStats, after: EngineStats, side: Side) -> None:
    for name in ("sampled_tokens", "decode_rows", "verify_rounds", "model_s", "sampling_s", "drafting_s"):
        total[name] += getattr(after, name) - getattr(before, name)
    for name in ("checked_at", "accepted_at"):
        total[name] = total[name] + np.array(getattr(after, name)) - np.array(getattr(before, name))
    total["steps"] += side.steps
    total["spent_s"] += side.spent_s
    total["cpu_s"] += side.cpu_s


def figures(total: dict[str, Any]) -> dict[str, Any]:
    steps, spent_s = total["steps"], total["spent_s"]
    found: dict[str, Any] = {
        "tokens_per_s": round(total["sampled_tokens"] / spent_s, 1),
        "cpu_tokens_per_s": round(total["sampled_tokens"] / total["cpu_s"], 1),
        "tokens": int(total["sampled_tokens"]),
        "steps": int(steps),
        "step_ms": round(spent_s / steps * 1e3, 2),
        "rows_per_step": round(total["decode_rows"] / steps, 2),
        "drafting_share": round(total["drafting_s"] / spent_s, 3),
    }
    if total["verify_rounds"]:
        checked, accepted = total["checked_at"], total["accepted_at"]
        found["accepted_length"] = round(1 + float(accepted.sum() / total["verify_rounds"]), 3)
        reached = np.minimum(np.concatenate([checked[:1], accepted[:-1]]), checked)
        found["acceptance"] = [round(float(a / r), 3) if r else None for a, r in zip(accepted, reached)]
    return found


def judge(sides: list[Side], pair: str) -> None:
    """How right confidences and step times were in all cells of a pair."""
    for side in sides:
        watch = side.watch
        values: dict[str, Any] = {}
        if watch.pairs and side.name != "ngram" and (pairs := np.concatenate(watch.pairs, axis=1)).size:
            values |= {"drafts": pairs.shape[1], "calibration_error": round(calibration_error(pairs), 4)}
        if watch.errors:
            values |= {
                "steps_predicted": len(watch.errors),
                "step_time_error": round(float(np.median(watch.errors)), 4),
                "cpu_step_time_error": round(float(np.median(watch.cpu_errors)), 4),
            }
        if values:
            record(Path(__file__).stem, what="judgement", side=side.name, pair=pair, **values, **busy())
        watch.pairs, watch.errors, watch.cpu_errors = [], [], []


def busy() -> dict[str, float]:
    """Who reads a figure of a shared machine should know."""
    return {"load": round(os.getloadavg()[0], 1)}


def show(title: str, lines: list[dict]) -> None:
    print(title, file=sys.stderr)
    for line in lines:
        acceptance = " ".join("  - " if a is None else f"{a:.2f}" for a in line.get("acceptance", ()))
        parts = [
            f"    {line['side']:8} {line['tokens_per_s']:7.1f} tok/s  ×{line['ratio']:<6.3f} by cpu ×{line['cpu_ratio']:<6.3f}",
            f"rows {line['rows_per_step']:6.1f}  step {line['step_ms']:6.1f} ms  drafting {line['drafting_share']:4.0%}",
            f"accepted length {line.get('accepted_length', 1.0):5.2f}  {acceptance}",
        ]
        if "share_of_best_fixed" in line:
            share, by_cpu = line["share_of_best_fixed"], line["cpu_share_of_best_fixed"]
            parts.append(f"of the best fixed {share:.3f}, by cpu {by_cpu:.3f}")
        print("  ".join(parts), file=sys.stderr)


def cells(asked: Any) -> list[tuple[str, int, str]]:
    """(pair, sequences, family) in the order in which they run: what was asked, or a part that takes minutes."""
    pairs = asked.pairs or PAIRS
    if asked.quick:
        return [(pair, 8, "json") for pair in pairs]
    if asked.batches or asked.families:
        batches, families = asked.batches or (1, 8, 32), asked.families or (*FAMILIES, "mixed")
        return [(pair, batch, family) for pair in pairs for batch in batches for family in families]
    small = [(1, family) for family in FAMILIES if family != "chat"]
    return [
        (pair, batch, family)
        for pair in pairs
        for batch, family in ([*small, (8, "mixed"), (32, "mixed")] if pair == "coupled/1" else [(8, "mixed")])
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="few sides and cells: half a minute")
    parser.add_argument("--batches", type=int, nargs="+", choices=sorted(ANSWER_TOKENS))
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES, "mixed"])
    parser.add_argument("--pairs", nargs="+", choices=PAIRS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="batches of answers in each cell")
    asked = parser.parse_args()
    names = QUICK if asked.quick else tuple(SIDES)
    sides: dict[str, list[Side]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # curves are measured in this run, as noisy as it is
        for pair, group in itertools.groupby(cells(asked), lambda cell: cell[0]):
            verify, _, temperature = pair.partition("/")
            if verify not in sides:
                sides[verify] = [build(name, SIDES[name], verify, asked.threads) for name in names]
            for _, batch, family in group:
                lines = run_cell(sides[verify], family, batch, float(temperature), asked.rounds)
                keys = {"family": family, "batch": batch, "verify": verify, "temperature": float(temperature)}
                for line in lines:
                    record(Path(__file__).stem, what="speed", **keys, **line, threads=asked.threads, **busy())
                show(f"{family}, {batch} at once, {pair}", lines)
            judge(sides[verify], pair)


if __name__ == "__main__":
    main()
