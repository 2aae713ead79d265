"""The engine's model, caches and all, against the same golden outputs."""

import numpy as np
import pytest
import torch
from small_models import Engine, golden_arrays, golden_model, golden_prompts

from deepinfer.ops import reference

SETTINGS = [("full", "float64", 2e-6), ("kv", "float64", 2e-6), ("none", "float32", 1e-4)]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
def setting(request: pytest.FixtureRequest) -> tuple[Engine, str, str, float]:
    numerics, dtype, tolerance = request.param
    return golden_model().engine(reference(), numerics, dtype), numerics, dtype, tolerance


@pytest.mark.parametrize("number", range(6))
def test_logits_equal_golden(setting: tuple[Engine, str, str, float], number: int) -> None:
    engine, numerics, _, tolerance = setting
    tokens, gold, key = golden_prompts()[number], golden_arrays(), f"chk_f64/{numerics}/{number}"
    logits = engine.model.logits(engine.run(tokens, [len(tokens) // 3]))
    np.testing.assert_allclose(logits[-1], gold[f"{key}/last_logits"], rtol=0, atol=tolerance)
    chosen = logits.double().log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(chosen, gold[f"{key}/next_logprob"], rtol=0, atol=tolerance)
    clear = gold[f"{key}/top2_margin"] > 1e-3
    assert (logits.argmax(-1).numpy() == gold[f"{key}/argmax"])[clear].all()


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", [0, 2, 5])
def test_greedy_tokens_equal_golden(setting: tuple[Engine, str, str, float], number: int) -> None:
    engine, numerics, *_ = setting
    wanted = golden_arrays()[f"chk_f64/{numerics}/{number}/greedy"].tolist()
    assert engine.greedy(golden_prompts()[number], len(wanted)) == wanted
