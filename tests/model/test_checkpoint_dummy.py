"""Dummy weights: deterministic by name, right in shape, sane in value, and what a checkpoint of them would load as."""

import json
import math
from pathlib import Path

import pytest
import torch

from deepinfer.arch.config import parse_config
from deepinfer.arch.tensors import tensor_table
from deepinfer.model.checkpoint.dummy import dummy_stored, dummy_weights
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.storage import TORCH_DTYPES
from deepinfer.model.checkpoint.weights import load_weights
from deepinfer.model.checkpoint.writer import write_checkpoint

ROOT = Path(__file__).parents[2]
RAW_CONFIG = json.loads((ROOT / "tests/fixtures/golden/tiny_a/config.json").read_text())
RAW_CONFIG.pop("vision_config")
CONFIG = parse_config(RAW_CONFIG)
FLASH = parse_config(json.loads((ROOT / "deepinfer/assets/v41_flash/config.json").read_text()))


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def test_every_tensor_of_the_table_in_its_stored_form() -> None:
    stored = dummy_stored(CONFIG)
    table = {spec.name: spec for spec in tensor_table(CONFIG)}
    assert stored.keys() == table.keys()
    for name, spec in table.items():
        assert stored[name].shape == spec.shape and stored[name].dtype == TORCH_DTYPES[spec.dtype]
        assert stored[name].nbytes == spec.nbytes


def test_a_tensor_does_not_depend_on_who_asks_for_what_else() -> None:
    whole = dummy_weights(CONFIG)
    names = [
        "layers.3.attn.wq_a.weight",
        "layers.1.engram.embed.weight",
        "mtp.0.main_proj.weight",
        "layers.9.ffn.gate.bias",
    ]
    for order in (names, names[::-1], names[:1]):
        part = dummy_weights(CONFIG, order)
        assert part.keys() == set(order)
        assert all(same(part[name], whole[name]) for name in order)


def test_seed_and_name_change_the_values() -> None:
    names = ["layers.0.attn.wq_a.weight", "layers.1.attn.wq_a.weight"]
    one, two = dummy_weights(CONFIG, names, seed=1), dummy_weights(CONFIG, names, seed=2)
    assert not torch.equal(one[names[0]], two[names[0]]) and not torch.equal(one[names[0]], one[names[1]])
    assert len(one[names[0]].unique(dim=0)) == 128  # no two rows alike


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_to_writing_and_loading_them(tmp_path: Path, dtype: torch.dtype) -> None:
    write_checkpoint(tmp_path / "dummy", RAW_CONFIG, dummy_stored(CONFIG, seed=3))
    loaded, made = (
        load_weights(open_checkpoint(tmp_path / "dummy"), dtype=dtype),
        dummy_weights(CONFIG, dtype=dtype, seed=3),
    )
    assert loaded.keys() == made.keys()
    assert all(loaded[name].dtype == made[name].dtype and same(loaded[name], made[name]) for name in made)


def test_values_are_finite_and_of_the_size_a_sane_model_has() -> None:
    for name, tensor in dummy_weights(CONFIG).items():
        assert tensor.isfinite().all(), name
        if name.endswith("norm.weight"):
            assert (tensor == 1).all()
        if name.endswith(("wo_b.weight", "w2.weight", "w1.weight", "wq_a.weight")):
            gain = tensor.std().item() * math.sqrt(tensor.shape[1])
            want = 0.2 if name.endswith(("wo_b.weight", "w2.weight")) else 1.0
            assert want / 1.6 < gain < want * 1.6, name  # scales are powers of two


def test_a_slice_of_the_released_model_costs_only_itself() -> None:
    names = ["layers.7.ffn.experts.383.w2.weight", "layers.7.attn.q_norm.weight", "layers.0.attn.wkv.weight"]
    part = dummy_weights(FLASH, names, dtype=torch.bfloat16)
    assert {name: tuple(part[name].shape) for name in names} == {
        "layers.7.ffn.experts.383.w2.weight": (5120, 2304),
        "layers.7.attn.q_norm.weight": (1280,),
        "layers.0.attn.wkv.weight": (512, 5120),
    }
    stored = dummy_stored(FLASH, names[:1])
    assert sum(tensor.nbytes for tensor in stored.values()) == 5120 * 1152 + 5120 * 72


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no tensor layers\.0\.nothing"):
        dummy_weights(CONFIG, ["layers.0.nothing"])
