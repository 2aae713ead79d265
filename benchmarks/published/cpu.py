"""The two values of the CPU's calibration, solved from our own steps of the tiny model; see benchmarks/throughput.py."""

import json
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from deepinfer.config.compose import load
from deepinfer.config.costs import CalibratedCost
from deepinfer.config.facts import probe
from deepinfer.plan.resolve import resolve

RESULTS = Path(__file__).parents[1] / "results" / "throughput.jsonl"
FITTED = (1, 32)  # sequences of the steps that the two values are solved from
CASE = ("hardware=cpu", "model=v41_tiny", "model.threads=1", "cost=calibrated", "scheduler.max_num_seqs=32")
ROUNDS = 40  # halvings of the share: far below what is written down


class CpuFit(Struct, frozen=True, kw_only=True):
    """What f32 products reach of the peak, and what a layer waits."""

    f32: float
    layer_latency_s: float


def measured_steps_s() -> dict[int, float]:
    """Sequences → median seconds of a decode step on one thread, as the tracked lines have them."""
    lines = [json.loads(text) for text in RESULTS.read_text().splitlines()]
    return {line["batch"]: line["deepinfer_step_ms"] / 1e3 for line in lines if line["threads"] == 1}


class CpuSteps:
    """What the model says of the same steps, whatever the two values are."""

    def __init__(self) -> None:
        context = next(json.loads(text)["context"] for text in RESULTS.read_text().splitlines())
        lengths = (f"workload.prompt_tokens={context}", "workload.output_tokens=1", "workload.cached_share=0")
        self._spec = load(*CASE, *lengths)
        self._facts = probe(self._spec)
        self.num_layers = resolve(self._spec, self._facts).model.config.num_hidden_layers

    def seconds(self, fit: CpuFit) -> dict[int, float]:
        """Sequences → seconds of a step."""
        cost = self._spec.cost
        assert isinstance(cost, CalibratedCost), CASE
        own = cost.architectures["cpu"]
        f32 = structs.replace(own.flops["f32"], value=fit.f32)
        waits = structs.replace(own.layer_latency_s, value=fit.layer_latency_s)
        own = structs.replace(own, flops={**own.flops, "f32": f32}, layer_latency_s=waits)
        cost = structs.replace(cost, architectures={**cost.architectures, "cpu": own})
        plan = resolve(structs.replace(self._spec, cost=cost), self._facts)
        return {point.sequences: point.steps[-1].time_s for point in plan.cost.decode.curve}


def fit_cpu() -> CpuFit:
    """The share with which 31 more sequences add what was measured, and the latency that is then left of the step of one.

    The more a product reaches, the less is added: halving an interval finds the share.
    """
    steps, measured = CpuSteps(), measured_steps_s()
    one, many = FITTED
    low, high = 1e-3, 1.0
    for _ in range(ROUNDS):
        share = (low + high) / 2
        found = steps.seconds(CpuFit(f32=share, layer_latency_s=0.0))
        added = found[many] - found[one]
        low, high = (share, high) if added > measured[many] - measured[one] else (low, share)
    left = measured[one] - steps.seconds(CpuFit(f32=low, layer_latency_s=0.0))[one]
    return CpuFit(f32=low, layer_latency_s=left / steps.num_layers)


def told(fit: CpuFit) -> Iterator[str]:
    """The steps that were not fitted: predicted and measured."""
    predicted = CpuSteps().seconds(fit)
    for sequences, measured_s in measured_steps_s().items():
        if sequences not in FITTED:
            error = predicted[sequences] / measured_s - 1
            found = f"{predicted[sequences] * 1e3:.1f} ms are predicted, {measured_s * 1e3:.1f} ms were measured"
            yield f"of a step of {sequences} sequences {found} ({error:+.0%})"
