"""The batched training forward computes what the engine's dense forward computes."""

import json
from pathlib import Path

import pytest
import torch

from deepinfer.arch.config import parse_config
from deepinfer.model.dense import DenseModel
from examples.tiny_model.model import Mode, TrainingModel
from examples.tiny_model.parameters import initial_weights
from examples.tiny_model.released_names import released_tensors
from examples.tiny_model.straight_through import quantised_weight

CONFIG = Path(__file__).parents[2] / "examples" / "tiny_model" / "config.json"
TOKENS = 768
FIRST = 584  # a multiple of 8, long enough that candidates cut; the second document is short
FLOOR = FIRST - 140


@pytest.fixture(scope="module")
def setup():
    config = parse_config(json.loads(CONFIG.read_text()))
    generator = torch.Generator().manual_seed(3)
    weights = initial_weights(config, 1, torch.device("cpu"))
    with torch.no_grad():
        for name, weight in weights.items():
            if "hc_" in name:
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
            if "attn_sink" in name:
                weight += torch.randn(weight.shape, generator=generator)
    classes = torch.randint(0, config.engram_compressed_vocab_size, (config.vocab_size,), generator=generator)
    ids = torch.randint(3, config.vocab_size, (1, TOKENS), generator=generator)
    ids[0, 0] = ids[0, FIRST] = config.bos_token_id
    bias = 0.1 * torch.randn(config.num_hidden_layers, config.n_routed_experts, generator=generator)
    return config, weights, classes, ids, bias


def training_logits(setup, mode: Mode, quantise_weights: bool, floor: torch.Tensor | None = None) -> torch.Tensor:
    config, weights, classes, ids, bias = setup
    model = TrainingModel(config, classes, torch.device("cpu"), compiled=False, dtype=torch.float32)
    model.bias_LE = bias
    if quantise_weights:
        weights = {name: quantised_weight(name, weight) for name, weight in weights.items()}
    with torch.no_grad():
        return model.logits(weights, model(weights, ids, mode, floor).hidden_BTD)[0]


def dense_logits(setup, numerics: str, ids: torch.Tensor, quantise_weights: bool, floor: int = 0) -> torch.Tensor:
    config, weights, classes, _, bias = setup
    if quantise_weights:
        weights = {name: quantised_weight(name, weight) for name, weight in weights.items()}
    dense = DenseModel(config, released_tensors(weights, bias), token_classes=classes.numpy(), numerics=numerics)
    with torch.no_grad():
        return dense(ids, window_floor=floor).logits_TV


def assert_same_rows(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal to float32 accuracy, but for the odd row where a near-tie of index scores picks another entry."""
    error = (ours - theirs).abs().amax(1) / theirs.std()
    assert error.median() < 1e-5
    assert (error < 1e-4).float().mean() > 0.95
    assert error.max() < 0.1


def test_sparse_forward_equals_dense_model_for_two_packed_documents(setup):
    ids = setup[3][0]
    packed = training_logits(setup, Mode(sparse=True), quantise_weights=True)
    for part in (slice(0, FIRST), slice(FIRST, TOKENS)):
        alone = dense_logits(setup, "none", ids[part], quantise_weights=True)
        assert_same_rows(packed[part], alone)


def test_top_k_and_candidates_cut_in_this_setup(setup):
    dense = training_logits(setup, Mode(sparse=False), quantise_weights=False)
    sparse = training_logits(setup, Mode(sparse=True), quantise_weights=False)
    assert (dense[:100] - sparse[:100]).abs().max() < 1e-5
    assert (dense[FIRST - 50 : FIRST] - sparse[FIRST - 50 : FIRST]).abs().max() > 1e-3


def test_replay_floor_equals_the_dense_mask(setup):
    config, ids = setup[0], setup[3][0]
    floor = torch.zeros(1, TOKENS, dtype=torch.long)
    floor[0, :FIRST] = FLOOR
    packed = training_logits(setup, Mode(sparse=True), quantise_weights=False, floor=floor)[FLOOR:FIRST]
    alone = dense_logits(setup, "none", ids[:FIRST], quantise_weights=False, floor=FLOOR)[FLOOR:]
    assert_same_rows(packed, alone)
    unmasked = training_logits(setup, Mode(sparse=True), quantise_weights=False)[FLOOR:FIRST]
    assert (packed - unmasked).abs().max() > 1e-2
    assert config.boundary == 3


def test_quantised_forward_agrees_with_full_numerics(setup):
    """Equal until a number is rounded the other way, which two orders of summation do sooner or later; near from there on."""
    ids = setup[3][0]
    packed = training_logits(setup, Mode(quantised=True, sparse=True), quantise_weights=True)[:FIRST]
    alone = dense_logits(setup, "full", ids[:FIRST], quantise_weights=True)
    plain = dense_logits(setup, "none", ids[:FIRST], quantise_weights=True)
    error = (packed - alone).norm(dim=1) / alone.norm(dim=1)
    distance = (plain - alone).norm(dim=1) / alone.norm(dim=1)
    assert error[:4].max() < 1e-5 < distance[:4].min()
    assert error.median() < 0.75 * distance.median()
    assert (packed.argmax(1) == alone.argmax(1)).float().mean() > 0.9


def test_indexer_learns_and_nothing_else_does_from_its_loss(setup):
    config, weights, classes, ids, bias = setup
    model = TrainingModel(config, classes, torch.device("cpu"), compiled=False, dtype=torch.float32)
    model.bias_LE = bias
    model(weights, ids, Mode(index_rows=1)).index_loss.backward()
    learned = {name for name, weight in weights.items() if weight.grad is not None}
    for weight in weights.values():
        weight.grad = None
    assert learned == {name for name in weights if "indexer" in name}
