"""The price of sampling=reproducible: tokens/s beside the default options, and beside products that depend on the batch.

    python benchmarks/reproducible.py [--batches 1 8 32] [--rounds 4] [--record]

Three sides, on the shipped tiny model and the same prompts, in turns of a few steps: `default` options, `reproducible`, and
`plain`, which is default with every matrix product left to torch in one piece. All CPU ops of this engine are batch-invariant
anyway, so the first two run the same code and differ by noise; what invariance itself costs is `plain` over `reproducible`
(values above 1 say how much faster plain products are). With a drafter, reproducible pins verify=coupled; `rejection` is then
the default with speculation.verify=rejection, and its tokens a round against those of coupled are what is given up. Refused
with reproducible, and so given up too: lossy replay (replay=mask|compact), bounded prefix hits (replay.on_hit=bounded) and
rejection verification. Figures by processor seconds, `cpu_`, leave out what others take of a shared machine.
"""

import dataclasses
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from record import options, record
from tiny_prompts import prompts

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.engine import build_model
from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.interfaces import SamplingParams
from deepinfer.ops import Ops
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

STEPS_PER_TURN = 4
FIXED = ("hardware=cpu", "model=v41_tiny", "model.threads=1", "scheduler.max_num_seqs=32")
DRAFTED = ("speculation=dspark_fixed", "speculation.back_off=false")


def build(*overrides: str) -> EngineGraph:
    spec = load(*FIXED, *overrides)
    return build_graph(resolve(spec, probe(spec)))


def with_plain_products(*overrides: str) -> EngineGraph:
    chosen = build_model._ops

    def plain(plan: Plan) -> Ops:
        return dataclasses.replace(
            chosen(plan), linear=torch.nn.functional.linear, grouped_linear=_grouped, routed_experts=_routed
        )

    with mock.patch.object(build_model, "_ops", plain):
        return build(*overrides)


def _grouped(x_TGK: torch.Tensor, weight_GNK: torch.Tensor) -> torch.Tensor:
    return torch.einsum("tgk,gnk->tgn", x_TGK, weight_GNK).flatten(1)


def _routed(x_TD, picks_TX, weights_TX, w13, w2, activate):  # type: ignore[no-untyped-def]
    """Each expert's rows as one product."""
    out_TD = torch.zeros_like(x_TD)
    for expert in picks_TX.unique().tolist():
        rows_T, slots_T = torch.nonzero(picks_TX == expert, as_tuple=True)
        act = activate(x_TD[rows_T] @ w13[expert].t(), weights_TX[rows_T, slots_T])
        out_TD.index_add_(0, rows_T, act @ w2[expert].t())
    return out_TD


class Side:
    def __init__(self, graph: EngineGraph) -> None:
        self.engine, self.limits = graph.engine, graph.limits

    def start(self, batch: int, temperature: float) -> None:
        """A running batch that does not end by itself."""
        params = SamplingParams(
            max_tokens=self.limits.max_model_len - 64, temperature=temperature, seed=1, ignore_eos=True
        )
        self._ids = [self.engine.submit(ids, params)[0] for ids in prompts("prose", batch)]
        while (stats := self.engine.stats()).waiting or stats.prefilling:
            self.engine.step()
        self.turn()
        self.before = self.engine.stats()
        self.rates: list[tuple[float, float]] = []  # tokens/s by wall and by processor, of each turn

    def turn(self) -> None:
        before, wall_s, cpu_s = self.engine.stats().sampled_tokens, time.perf_counter(), time.process_time()
        for _ in range(STEPS_PER_TURN):
            self.engine.step()
        tokens = self.engine.stats().sampled_tokens - before
        if hasattr(self, "rates"):
            self.rates.append((tokens / (time.perf_counter() - wall_s), tokens / (time.process_time() - cpu_s)))

    def end(self) -> dict[str, float]:
        after, before = self.engine.stats(), self.before
        for request_id in self._ids:
            self.engine.finish(request_id)
        wall, cpu = np.median(np.array(self.rates), axis=0)
        found = {"tokens_per_s": round(float(wall), 1), "cpu_tokens_per_s": round(float(cpu), 1)}
        if rounds := after.verify_rounds - before.verify_rounds:
            found["accepted_length"] = round(1 + (sum(after.accepted_at) - sum(before.accepted_at)) / rounds, 3)
        return found


def measure(sides: dict[str, Side], batch: int, rounds: int, temperature: float, drafter: str) -> None:
    for side in sides.values():
        side.start(batch, temperature)
    for _ in range(rounds):
        for side in sides.values():
            side.turn()
    found = {name: side.end() for name, side in sides.items()}
    this = found["reproducible"]
    ratios = {
        f"{key.removesuffix('tokens_per_s')}{name}_over_reproducible": round(values[key] / this[key], 3)
        for name, values in found.items()
        if name != "reproducible"
        for key in ("tokens_per_s", "cpu_tokens_per_s")
    }
    values = {f"{name}_{key}": value for name, one in found.items() for key, value in one.items()}
    record(
        Path(__file__).stem,
        batch=batch,
        drafter=drafter,
        temperature=temperature,
        **ratios,
        **values,
        load=[round(value, 1) for value in os.getloadavg()],
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=4, help=f"turns of {STEPS_PER_TURN} steps of each side")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        sides = {
            "reproducible": Side(build("sampling=reproducible")),
            "default": Side(build()),
            "plain": Side(with_plain_products()),
        }
        for batch in asked.batches:
            measure(sides, batch, asked.rounds, 1.0, "none")
        drafted = {
            "reproducible": Side(build("sampling=reproducible", *DRAFTED)),
            "rejection": Side(build(*DRAFTED, "speculation.verify=rejection")),
            "plain": Side(with_plain_products(*DRAFTED)),
        }
        for batch in asked.batches:
            measure(drafted, batch, asked.rounds, 1.0, "dspark_fixed")


if __name__ == "__main__":
    main()
