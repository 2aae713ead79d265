"""benchmarks/step_accuracy.py: steps of a rank that were recorded, beside what single kernels say of them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config.specs import Spec

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # benchmarks are no package

import rank_slice
import step_accuracy

COMMON = {
    "run": "ep64",
    "layout": "ep64",
    "commit": "abc",
    "measured_at": "2026-11-30T23:00:00Z",
    "routing": "balanced",
}
TYPED = [
    "task.slice=rank",
    "hardware=h200",
    "model=v41_flash",
    "model.weights=dummy",
    "parallel=ep64",
    "speculation=dspark",
]


def decode(sequences: int, rows_each: int, ms: float, load: float = 1.0) -> dict[str, Any]:
    sizes = {"sequences": sequences, "rows_each": rows_each, "rows": sequences * rows_each, "context": 4096}
    return COMMON | sizes | {"what": "decode", "ms": ms, "load": load}


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    prompt = {"what": "prefill", "tokens": 16384, "chunk_tokens": 8192, "keep": None, "ms": 900.0, "load": 1.0}
    entries = [
        {"op": "fp8_linear", "shape": "", "calls": 280, "ms": 9.0},
        {"op": "paged_index_scores", "shape": "", "calls": 4, "ms": 0.1},
        {"op": "between operations", "shape": "", "calls": 1, "ms": 1.0},
    ]
    return [
        COMMON | {"what": "share", "overrides": TYPED},
        decode(32, 6, 24.0),
        decode(1, 1, 8.0),
        COMMON | prompt,
        COMMON | {"what": "ops", "step": "decode 32 × 6 rows at 4,096 tokens", "entries": entries},
    ]


def test_what_small_operations_take_is_read_off_the_smallest_step_alone(lines: list[dict[str, Any]]) -> None:
    fit = step_accuracy.fitted(lines)
    assert fit.step.startswith("1 × 1 rows") and fit.layer_latency_s > 0
    steps = {step.name: step for found in step_accuracy.steps_of(lines, fit.layer_latency_s).values() for step in found}
    assert steps["1 × 1 rows at 4,096"].error == pytest.approx(0.0, abs=1e-9)
    assert steps["32 × 6 rows at 4,096"].error != pytest.approx(0.0, abs=1e-3)  # a prediction
    other = step_accuracy.fitted([*lines, decode(64, 6, 1.0)])
    assert other == fit


def test_a_prompt_is_as_many_steps_as_it_has_chunks(lines: list[dict[str, Any]]) -> None:
    model = step_accuracy.Model("ep64", lines)
    whole = next(line for line in lines if line["what"] == "prefill")
    half = model.step(whole | {"tokens": 8192})
    assert half.modelled_ms < model.step(whole).modelled_ms / 2  # the second chunk looks back on the first
    assert "prompt of 16,384, 8,192 at a time" in model.step(whole).name


def test_experts_with_more_pairs_take_longer(lines: list[dict[str, Any]]) -> None:
    model = step_accuracy.Model("ep64", lines)
    even, busy = (model.step(decode(128, 6, 60.0, load)).modelled_ms for load in (1.0, 3.0))
    assert busy > 1.1 * even


def test_the_report_names_steps_kernels_and_what_has_no_figures(lines: list[dict[str, Any]]) -> None:
    text = step_accuracy.report(lines, step_accuracy.fitted(lines))
    assert "| 32 × 6 rows at 4,096 | balanced | 24.00 |" in text and "every other step is a prediction" in text
    kernels = {row.split("|")[1].strip(): row for row in text.splitlines() if row.startswith("| `")}
    assert "%" in kernels["`fp8_linear`"] and "%" in kernels["`index_scores`"]
    assert kernels["`between operations`"].endswith("|  |  |")


def test_recorded_steps_are_met(spec_of: Callable[..., Spec]) -> None:
    lines = rank_slice.latest(step_accuracy.RESULTS / "rank_slice.jsonl")
    fit = step_accuracy.fitted(lines)
    own = spec_of("hardware=h200").cost.own_kernels["h200"]
    assert own.layer_latency_s.value == pytest.approx(fit.layer_latency_s, abs=3e-6), "step_accuracy.py --write"
    for name, steps in step_accuracy.steps_of(lines, fit.layer_latency_s).items():
        errors = [abs(step.error) for step in steps]
        assert step_accuracy.median(errors) < 0.15 and step_accuracy.p90(errors) < 0.3, name
