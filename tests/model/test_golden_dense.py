"""The one-shot forward against golden outputs of an independent float64 implementation."""

import numpy as np
import pytest
import torch
from small_models import golden_arrays, golden_model, golden_prompts, golden_trace

from deepinfer.model.dense import DenseModel, DenseOutput

# numerics, dtype, largest difference of logits: goldens are stored in float32
SETTINGS = [("full", "float64", 2e-6), ("kv", "float64", 2e-6), ("none", "float64", 2e-6), ("none", "float32", 1e-4)]


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda s: f"{s[0]}-{s[1]}")
def setting(request: pytest.FixtureRequest) -> tuple[DenseModel, str, float]:
    numerics, dtype, tolerance = request.param
    return golden_model().dense(numerics, dtype), f"chk_f64/{numerics}", tolerance


@pytest.fixture(scope="module")
def traced() -> DenseOutput:
    return golden_model().dense("full", "float64")(torch.tensor(golden_prompts()[2]))


@pytest.mark.parametrize("number", range(6))
def test_logits_choices_and_log_probabilities_equal_golden(setting: tuple[DenseModel, str, float], number: int) -> None:
    model, key, tolerance = setting
    gold, tokens = golden_arrays(), golden_prompts()[number]
    logits = model(torch.tensor(tokens)).logits_TV.double()
    key = f"{key}/{number}"
    np.testing.assert_allclose(logits[-1], gold[f"{key}/last_logits"], rtol=0, atol=tolerance)
    chosen = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(chosen, gold[f"{key}/next_logprob"], rtol=0, atol=tolerance)
    clear = gold[f"{key}/top2_margin"] > 1e-3
    assert (logits.argmax(-1).numpy() == gold[f"{key}/argmax"])[clear].all()


def test_float32_full_numerics_agree_until_a_rounding_flips() -> None:
    model, gold = golden_model().dense("full", "float32"), golden_arrays()
    for number, tokens in enumerate(golden_prompts()):
        logits, key = model(torch.tensor(tokens)).logits_TV.double(), f"chk_f64/full/{number}"
        difference = logits[-1].numpy() - gold[f"{key}/last_logits"]
        assert np.sqrt(np.mean(difference**2)) <= 0.2
        assert (logits.argmax(-1).numpy() == gold[f"{key}/argmax"]).mean() >= 0.88


@pytest.mark.parametrize(("name", "later"), [("first", 0), ("next", 1)])
@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_bounded_replay_as_a_mask_equals_golden(name: str, later: int, number: int) -> None:
    model, gold, tokens = golden_model().dense("full", "float64"), golden_arrays(), list(golden_prompts()[number])
    config, key = model.config, f"chk_f64/replay_boundary_{name}/{number}"
    floor = len(tokens) - (config.sliding_window + 6)
    produced = []
    for step in range(3):
        out = model(torch.tensor(tokens), window_floor=floor, floor_layer=config.boundary + later)
        if step == 0:
            np.testing.assert_allclose(out.logits_TV[-1], gold[f"{key}/last_logits"], rtol=0, atol=2e-6)
        produced.append(int(out.logits_TV[-1].argmax()))
        tokens.append(produced[-1])
    assert produced == gold[f"{key}/greedy"][:3].tolist()


def test_streams_after_every_layer_equal_the_trace(traced: DenseOutput) -> None:
    trace = golden_trace()
    for i, layer in enumerate(trace["stream_layers"]):
        np.testing.assert_allclose(traced.trace[f"stream/{layer}"], trace["stream_after_layer"][i], rtol=0, atol=2e-6)


def test_router_choices_equal_the_trace(traced: DenseOutput) -> None:
    for layer in range(golden_model().config.num_hidden_layers):
        mine = traced.trace[f"router/{layer}"].sort(dim=-1).values
        assert (mine.numpy() == np.sort(golden_trace()[f"router_choice/{layer}"])).all()


def test_selected_entries_equal_the_trace(traced: DenseOutput) -> None:
    for layer in golden_model().config.index_source_layer_ids:
        assert (traced.trace[f"topk/{layer}"].numpy() == golden_trace()[f"topk_mask/{layer}"]).all()


def test_engram_rows_and_gates_equal_the_trace(traced: DenseOutput) -> None:
    for layer in golden_model().config.engram_layer_ids:
        assert (traced.trace[f"engram_rows/{layer}"].numpy() == golden_trace()[f"engram_rows/{layer}"]).all()
        gates = golden_trace()[f"engram_gate/{layer}"]
        np.testing.assert_allclose(traced.trace[f"engram_gate/{layer}"], gates, rtol=0, atol=1e-6)


def test_token_classes_equal_the_trace() -> None:
    assert (golden_model().classes == golden_trace()["token_class"]).all()
