"""Calibration and report from measured rounds, and export: the drafter changes, nothing else does."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights
from examples.tiny_model import card, draft_calibrate, draft_export, export
from examples.tiny_model.draft_target import CHECKPOINT
from examples.tiny_model.parameters import initial_draft_weights, initial_weights
from examples.tiny_model.released_names import DRAFT
from examples.tiny_model.state import save_state
from examples.tiny_model.straight_through import quantised_weight

SLOTS, ROUNDS = 5, 6000


@pytest.fixture(scope="module")
def blocks():
    """Rounds whose true chance is sigmoid(0.5 · logit + 0.7), some ending early."""
    rng = np.random.default_rng(1)
    columns = {"families": np.array(["a", "b"])}
    for verify in ("coupled", "rejection"):
        count = 3 * ROUNDS
        logits = rng.normal(0, 2, (count, SLOTS)).astype(np.float16)
        chance = 1 / (1 + np.exp(-(0.5 * logits.astype(float) + 0.7)))
        exists = np.where(rng.random(count) < 0.2, rng.integers(1, SLOTS, count), SLOTS)
        kept = (rng.random((count, SLOTS)) < chance) & (np.arange(SLOTS) < exists[:, None])
        columns |= {
            f"{verify}/document": np.arange(count) // 4, f"{verify}/family": (np.arange(count) % 2).astype(np.uint8),
            f"{verify}/temperature": np.repeat([0.0, 0.7, 1.0], ROUNDS).astype(np.float16),
            f"{verify}/ended": np.ones(count, bool), f"{verify}/exists": exists.astype(np.uint8),
            f"{verify}/accepted": kept.cumprod(1).sum(1).astype(np.uint8), f"{verify}/confidence": logits,
        }  # fmt: skip
    return columns


def test_fits_find_scale_and_offset_and_lower_the_error(blocks):
    file, report, log = draft_calibrate.calibrate(blocks, {})
    assert [(fit["verify"], fit["temperature"]) for fit in file["fits"]] == [
        (verify, t) for verify in ("coupled", "rejection") for t in (0.0, 0.7, 1.0)
    ]
    for fit in file["fits"]:
        assert abs(fit["scale"][0] - 0.5) < 0.1 and abs(fit["offset"][0] - 0.7) < 0.15
    pair = report["pairs"]["coupled, temperature 1"]
    assert pair["calibration_error_fitted"]["survival"][0] < 0.04 < pair["calibration_error_raw"]["survival"][0]
    assert set(pair["families"]) == {"a", "b"} and pair["all"]["rounds"] == ROUNDS
    assert log["confidence"].shape == (len(log["accepted"]), SLOTS) and set(log["temperature"]) == {0.0, 1.0}


def test_slots_after_an_accepted_end_are_not_judged(blocks):
    rounds = draft_calibrate.rounds_of(blocks, "coupled", 0.0)
    ended = (rounds.count_R == rounds.exists_R) & (rounds.exists_R == 2)
    refused = (rounds.count_R == 1) & (rounds.exists_R == 2)
    assert np.isnan(rounds.logits_RK[ended][:, 2:]).all() and np.isfinite(rounds.logits_RK[ended][:, :2]).all()
    assert ended.any() and refused.any() and np.isfinite(rounds.logits_RK[refused]).all()
    cut = blocks | {"coupled/ended": np.zeros(3 * ROUNDS, bool)}
    assert (draft_calibrate.rounds_of(cut, "coupled", 0.0).exists_R == SLOTS).all()


def test_export_replaces_the_drafter_alone(blocks, tmp_path):
    checkpoint, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(CHECKPOINT, checkpoint)
    config = open_checkpoint(checkpoint).config
    weights = initial_draft_weights(config, {"norm.weight": torch.ones(config.hidden_size)}, 4)
    bias = torch.full((2, 4), 0.25)
    progress = {"steps": 3, "tokens": 10, "seconds": 1.0, "device": "none"}
    save_state(run, "weights", weights | {"bias_LE": bias}, progress)
    file, report, _ = draft_calibrate.calibrate(blocks, {})
    (run / "draft_calibration.json").write_text(json.dumps(file))
    (run / "draft_eval.json").write_text(json.dumps(report))
    draft_export.replace_drafter(run, checkpoint)

    before, after = load_weights(open_checkpoint(CHECKPOINT)), load_weights(open_checkpoint(checkpoint))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith(DRAFT) for name in changed)
    name = "mtp.0.main_proj.weight"
    assert torch.equal(after[name], quantised_weight(name, weights[name]))
    assert torch.equal(after["mtp.1.ffn.gate.bias"], bias[1])
    record = json.loads((checkpoint / "training.json").read_text())
    digest = hashlib.sha256((run / "weights-0.safetensors").read_bytes()).hexdigest()
    assert record["draft_module"]["master_weights_sha256"] == {"weights-0.safetensors": digest}
    assert (checkpoint / "LICENSE").is_file() and json.loads(
        (checkpoint / "draft_calibration.json").read_text()
    ) == file
    assert "| coupled, temperature 0 |" in card.drafter_text(checkpoint, record)


def test_an_export_of_the_trunk_can_take_a_trained_drafter_along(tmp_path):
    config = open_checkpoint(CHECKPOINT).config
    trunk = initial_weights(config, 1, torch.device("cpu"))
    draft = initial_draft_weights(config, trunk, 4)
    save_state(tmp_path / "run", "weights", trunk | {"bias_LE": torch.zeros(6, 8)}, {"steps": 1, "arguments": {}})
    save_state(tmp_path / "drafter", "weights", draft | {"bias_LE": torch.zeros(2, 4)}, {"steps": 2})
    (tmp_path / "drafter" / "draft_calibration.json").write_text("{}")
    export.export(tmp_path / "run", tmp_path / "model", tmp_path / "drafter")
    loaded = load_weights(open_checkpoint(tmp_path / "model"))
    name = "mtp.1.attn.wkv.weight"
    assert torch.equal(loaded[name], quantised_weight(name, draft[name]))
    assert (tmp_path / "model" / "draft_calibration.json").is_file()
    assert json.loads((tmp_path / "model" / "training.json").read_text())["draft_module"]["steps"] == 2


def test_the_shipped_drafter_has_a_calibration_for_every_pair():
    file = json.loads((CHECKPOINT / "draft_calibration.json").read_text())
    assert file["format"] == 1 and len(file["fits"]) == 6
    assert all(len(fit["scale"]) == len(fit["offset"]) == SLOTS for fit in file["fits"])
    record = json.loads((CHECKPOINT / "training.json").read_text())["draft_module"]
    assert record["steps"] >= 2500 and record["master_weights_sha256"]
    assert sum(f.stat().st_size for f in CHECKPOINT.glob("*.safetensors")) < 16_000_000
