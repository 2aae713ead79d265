"""Fake quantisation in training equals the engine's, passes gradients straight through, and survives export bit for bit."""

import json
from pathlib import Path

import pytest
import torch

from deepinfer import formats
from deepinfer.arch.config import parse_config
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights
from examples.tiny_model import export, straight_through
from examples.tiny_model.parameters import initial_weights
from examples.tiny_model.released_names import released_tensors
from examples.tiny_model.state import load_progress, load_tensors, save_state

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def weights():
    config = parse_config(json.loads((ROOT / "examples" / "tiny_model" / "config.json").read_text()))
    return initial_weights(config, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("ours", "engines"),
    [
        (straight_through.activation, formats.fake_fp8_rows),
        (straight_through.window_key, formats.fake_window),
        (straight_through.main_key, formats.fake_main),
        (straight_through.index_vector, formats.fake_index),
    ],
)
def test_values_are_the_engines_and_gradients_pass(ours, engines):
    x = torch.randn(7, 128, generator=torch.Generator().manual_seed(1)).requires_grad_(True)
    y = ours(x)
    assert torch.equal(y, engines(x.detach()))
    assert not torch.equal(y, x)
    slope = torch.randn(7, 128)
    y.backward(slope)
    assert torch.equal(x.grad, slope)


def test_grouped_refresh_equals_tensor_by_tensor(weights):
    copies = straight_through.QuantisedWeights(weights)
    copies.refresh(quantise=True)
    changed = 0
    for name, weight in weights.items():
        assert torch.equal(copies.leaves[name], straight_through.quantised_weight(name, weight)), name
        changed += not torch.equal(copies.leaves[name], weight)
    assert changed > 40
    copies.refresh(quantise=False)
    assert all(torch.equal(copies.leaves[name], weight) for name, weight in weights.items())


def test_gradients_are_handed_over(weights):
    copies = straight_through.QuantisedWeights(weights)
    name = "norm.weight"
    copies.leaves[name].sum().backward()
    copies.hand_over_gradients()
    assert torch.equal(weights[name].grad, torch.ones_like(weights[name]))
    assert copies.leaves[name].grad is None
    weights[name].grad = None


def test_state_is_saved_in_parts_and_read_back(tmp_path):
    tensors = {f"t{i}": torch.full((2_000_000,), float(i)) for i in range(4)}
    save_state(tmp_path, "weights", tensors, {"steps": 3})
    progress = load_progress(tmp_path)
    assert progress["steps"] == 3 and len(progress["weights"]) > 1
    loaded = load_tensors(tmp_path, "weights")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(ValueError, match="train first"):
        load_tensors(tmp_path / "nothing", "weights")


def test_exported_file_holds_exactly_the_quantised_weights(weights, tmp_path):
    generator = torch.Generator().manual_seed(2)
    bias = torch.randn(6, 8, generator=generator)
    run, output = tmp_path / "run", tmp_path / "model"
    save_state(run, "weights", dict(weights) | {"bias_LE": bias}, {"steps": 1, "arguments": {"output": "x"}})
    export.export(run, output)
    loaded = load_weights(open_checkpoint(output))
    quantised = {name: straight_through.quantised_weight(name, weight) for name, weight in weights.items()}
    expected = released_tensors(quantised, bias)
    for name, weight in expected.items():
        assert torch.equal(loaded[name], weight), name
    assert {name for name in loaded if name not in expected} == {name for name in loaded if name.startswith("mtp.")}
    assert sum(file.stat().st_size for file in output.glob("*.safetensors")) < 15_000_000
    record = json.loads((output / export.PROVENANCE_FILE).read_text())
    assert "output" not in record["arguments"] and len(record["master_weights_sha256"]) == 3
