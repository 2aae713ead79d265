"""The engine's model, caches and all, against the same golden outputs; and the draft module on top of it."""

import numpy as np
import pytest
import torch
from small_models import Engine, golden_arrays, golden_model, golden_prompts, make_step

from deepinfer.model.dspark import Drafts, DSpark
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


@pytest.mark.parametrize("number", [0, 2, 5])
def test_greedy_tokens_equal_golden(setting: tuple[Engine, str, str, float], number: int) -> None:
    engine, numerics, *_ = setting
    wanted = golden_arrays()[f"chk_f64/{numerics}/{number}/greedy"].tolist()
    assert engine.greedy(golden_prompts()[number], len(wanted)) == wanted


@pytest.mark.parametrize("number", range(6))
def test_drafts_and_confidences_equal_golden(setting: tuple[Engine, str, str, float], number: int) -> None:
    engine, numerics, dtype, tolerance = setting
    gold, key = golden_arrays(), f"chk_f64/{numerics}/{number}"
    newest = int(gold[f"{key}/greedy"][0])
    drafts = drafted(engine, golden_prompts()[number], newest, numerics, dtype)
    assert [newest, *drafts.tokens_SQ[0].tolist()] == gold[f"{key}/draft_tokens"].tolist()
    np.testing.assert_allclose(drafts.logits_SQV[0], gold[f"{key}/draft_logits"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(drafts.confidence_SQ[0], gold[f"{key}/draft_conf_raw"], rtol=0, atol=tolerance)


def drafted(engine: Engine, tokens: list[int], newest: int, numerics: str, dtype: str) -> Drafts:
    """Greedy drafts after a prompt and its first answer token."""
    length, window = len(tokens), engine.model.config.sliding_window
    step = make_step([(tokens, 0, length, 0, engine.table(0))])
    _, features = engine.model.forward_with_features(step, engine.cache)
    draft = DSpark(golden_model().config, golden_model().weights, engine.model.ops, numerics=numerics, dtype=dtype)
    newest_S = torch.tensor([newest])
    windows = []
    for keys in draft.context_keys(features, torch.arange(length)):
        before = keys.new_zeros(max(0, window - length), keys.shape[1])
        windows.append(torch.cat((before, keys[-window:])).unsqueeze(0))
    mask_SW = (torch.arange(window) >= window - length).unsqueeze(0)
    hidden = draft.block(newest_S, torch.tensor([length]), windows, mask_SW)
    return draft.draft(hidden, newest_S, lambda logits, slot: logits.argmax(-1))
