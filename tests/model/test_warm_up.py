"""Warming up runs a prompt and a decode step, and leaves the caches in use alone."""

import pytest
from small_models import golden_model

from deepinfer.model.v41 import V41Model
from deepinfer.model.warm_up import warm_up
from deepinfer.ops import reference


@pytest.mark.parametrize("numerics", ["full", "none"])
def test_warm_up_runs_both_kinds_of_rows_on_caches_of_its_own(monkeypatch: pytest.MonkeyPatch, numerics: str) -> None:
    engine = golden_model().engine(reference(), numerics, "float32")
    rows, caches = [], []
    forward = V41Model.forward

    def watched(model: V41Model, step: object, cache: object) -> object:
        rows.append(step.num_rows)  # type: ignore[attr-defined]
        caches.append(cache)
        return forward(model, step, cache)  # type: ignore[arg-type]

    monkeypatch.setattr(V41Model, "forward", watched)
    assert warm_up(engine.model) > 0
    assert sorted(rows)[0] == 1 < sorted(rows)[-1]
    assert engine.cache not in caches
