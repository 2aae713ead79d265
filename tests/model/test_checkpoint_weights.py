"""Weights as numbers: dequantisation against a plain transcription, dtypes, parts, progress."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights, weight_specs

TINY_A = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


@pytest.fixture(scope="module")
def raw() -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(TINY_A.glob("*.safetensors")) for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def loaded() -> dict[str, torch.Tensor]:
    return load_weights(open_checkpoint(TINY_A), dtype=torch.float64)


def plain_transcription(name: str, raw: dict[str, torch.Tensor]) -> np.ndarray:
    """The stored number formats written out element by element, in NumPy."""
    weight = raw[name]
    if weight.dtype in (torch.bfloat16, torch.float32):
        return weight.double().numpy()
    scale = 2.0 ** (raw[name.replace(".weight", ".scale")].view(torch.uint8).numpy().astype(np.float64) - 127)
    if weight.dtype == torch.int8:
        packed = weight.numpy().view(np.uint8)
        values = np.stack([E2M1[packed & 15], E2M1[packed >> 4]], axis=-1).reshape(len(packed), -1)
        return values * np.repeat(scale, 32, axis=1)
    values = weight.double().numpy()
    by_row = name.endswith("engram.embed.weight")
    spread = np.repeat(scale if by_row else np.repeat(scale, 32, axis=0), 32, axis=1)
    return values * spread[: values.shape[0], : values.shape[1]]


def test_every_weight_equals_the_plain_transcription(
    raw: dict[str, torch.Tensor], loaded: dict[str, torch.Tensor]
) -> None:
    assert len(loaded) == 567
    for name, tensor in loaded.items():
        assert tensor.dtype == torch.float64
        assert np.array_equal(tensor.numpy(), plain_transcription(name, raw)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_dtypes_hold_the_same_numbers(dtype: torch.dtype, loaded: dict[str, torch.Tensor]) -> None:
    narrow = load_weights(open_checkpoint(TINY_A), dtype=dtype)
    stored_f32 = {spec.name for spec in weight_specs(open_checkpoint(TINY_A).config) if spec.dtype == "F32"}
    assert {name for name, tensor in narrow.items() if tensor.dtype != dtype} == (
        stored_f32 if dtype == torch.bfloat16 else set()
    )
    assert all(torch.equal(narrow[name].double(), loaded[name]) for name in loaded)


def test_scales_and_vision_are_not_among_the_weights(loaded: dict[str, torch.Tensor]) -> None:
    assert not any(name.endswith(".scale") or name.startswith(("vision.", "aligner.", "image_")) for name in loaded)


def test_only_what_was_asked_for_in_table_order(loaded: dict[str, torch.Tensor]) -> None:
    names = [
        "norm.weight",
        "layers.4.engram.embed.weight",
        "layers.1.ffn.experts.3.w2.weight",
        "layers.1.ffn.experts.3.w2.scale",
    ]
    part = load_weights(open_checkpoint(TINY_A), names, dtype=torch.float64)
    assert list(part) == ["norm.weight", "layers.1.ffn.experts.3.w2.weight", "layers.4.engram.embed.weight"]
    assert all(torch.equal(part[name], loaded[name]) for name in part)


def test_names_that_do_not_exist_are_refused() -> None:
    checkpoint = open_checkpoint(TINY_A)
    with pytest.raises(ValueError, match=r"no tensor layers\.99\.x, vision\.norm\.weight"):
        load_weights(checkpoint, ["norm.weight", "layers.99.x", "vision.norm.weight"])


def test_progress_counts_stored_bytes_to_the_end() -> None:
    reports: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(TINY_A)
    load_weights(checkpoint, progress=lambda done, total: reports.append((done, total)))
    total = sum(spec.nbytes for spec in weight_specs(checkpoint.config))
    assert reports[-1] == (total, total) and len(reports) == 567
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})


def test_weights_outlive_the_files(tmp_path: Path, loaded: dict[str, torch.Tensor]) -> None:
    folder = shutil.copytree(TINY_A, tmp_path / "copy")
    weights = load_weights(open_checkpoint(folder))  # float32: some tensors need no conversion
    for shard in folder.glob("*.safetensors"):
        with shard.open("r+b") as file:
            file.write(b"\0" * shard.stat().st_size)
    assert all(torch.equal(weights[name].double(), loaded[name]) for name in loaded)


def test_a_broken_part_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    folder = shutil.copytree(TINY_A, tmp_path / "copy")
    (folder / "model-00001-of-00002.safetensors").unlink()
    reports: list[int] = []
    with pytest.raises(CheckpointErrors, match="is not there"):
        load_weights(open_checkpoint(folder), progress=lambda done, _: reports.append(done))
    assert not reports
