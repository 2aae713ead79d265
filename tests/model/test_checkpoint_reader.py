"""Opening and checking checkpoints: the golden one, its permitted variants, and everything that must be refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from deepinfer.arch.tensors import tensor_table
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.reader import INDEX_FILE, open_checkpoint
from deepinfer.model.checkpoint.verify import verify
from deepinfer.model.checkpoint.weights import load_weights

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
TINY_A = GOLDEN / "tiny_a"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A private copy of the golden checkpoint."""
    return shutil.copytree(TINY_A, tmp_path / "copy")


def edit_json(file: Path, change: Callable[[dict], None]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / FIRST) | load_file(folder / SECOND)


def into_one_file(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    for file in (FIRST, SECOND, INDEX_FILE):
        (folder / file).unlink(missing_ok=True)
    save_file(tensors, folder / "model.safetensors")


def kinds_of(folder: Path, names: list[str] | None = None) -> dict[str, tuple[str, ...]]:
    with pytest.raises(CheckpointErrors) as caught:
        verify(open_checkpoint(folder), names)
    assert caught.value.exit_code == 5
    return caught.value.kinds


def test_the_golden_checkpoint_holds_its_tensor_table() -> None:
    checkpoint = open_checkpoint(TINY_A)
    assert len(checkpoint.stored) == 962
    assert verify(checkpoint) == ["26 vision tensors are skipped: images are not supported, text is"]
    assert {spec.name for spec in tensor_table(checkpoint.config)} == checkpoint.stored.keys()


def test_engram_classes_equal_the_golden_map() -> None:
    checkpoint = open_checkpoint(TINY_A)
    with np.load(GOLDEN / "trace_a.npz") as trace:
        assert np.array_equal(checkpoint.engram_classes, trace["token_class"])


def test_a_model_prefix_and_a_single_file_are_accepted(copy: Path) -> None:
    want = load_weights(open_checkpoint(copy))
    into_one_file(copy, {f"model.{name}": tensor for name, tensor in all_tensors(copy).items()})
    got = load_weights(open_checkpoint(copy))
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_prefix_in_the_index_too(copy: Path) -> None:
    for file in (FIRST, SECOND):
        save_file({f"model.{name}": tensor for name, tensor in load_file(copy / file).items()}, copy / file)
    edit_json(
        copy / INDEX_FILE,
        lambda v: v.update(weight_map={f"model.{name}": file for name, file in v["weight_map"].items()}),
    )
    assert len(verify(open_checkpoint(copy))) == 1


def test_both_spellings_of_pad_key_and_rope_type(copy: Path) -> None:
    want = open_checkpoint(copy).config

    def respell(raw: dict) -> None:
        text = raw["text_config"]
        text["engram_pad_id"] = text.pop("engram_pad_token_id")
        text["rope_scaling"]["type"] = text["rope_scaling"].pop("rope_type")

    edit_json(copy / "config.json", respell)
    assert open_checkpoint(copy).config == want


def test_all_kinds_of_faults_are_listed_together(copy: Path) -> None:
    tensors = all_tensors(copy)
    for name in ("norm.weight", "layers.3.attn.wq_a.scale", "vision.norm.weight"):
        del tensors[name]
    tensors["layers.0.ffn.experts.99.w1.weight"] = torch.zeros(1, dtype=torch.int8)
    tensors["layers.1.attn.attn_sink"] = torch.zeros(9)
    tensors["layers.2.ffn.gate.bias"] = torch.zeros(8, dtype=torch.bfloat16)
    tensors["head.weight"] = torch.zeros(3, 4)
    into_one_file(copy, tensors)
    edit_json(copy / "config.json", lambda raw: raw["text_config"].update(engram_compressed_vocab_size=1500))
    kinds = kinds_of(copy)
    assert kinds["missing"] == (
        "layers.3.attn.wq_a.scale F8_E8M0 [4, 8]",
        "norm.weight BF16 [256]",
        "vision.norm.weight BF16 [64]",
    )
    assert kinds["unexpected"] == ("layers.0.ffn.experts.99.w1.weight",)
    assert kinds["wrong shape"] == (
        "head.weight is [3, 4], config.json needs [2048, 256]",
        "layers.1.attn.attn_sink is [9], config.json needs [8]",
    )
    assert kinds["wrong dtype"] == (
        "head.weight is F32, the release stores BF16",
        "layers.2.ffn.gate.bias is BF16, the release stores F32",
    )
    assert "1590 engram classes, config.json says engram_compressed_vocab_size=1500" in kinds["tokenizer"][0]
    assert kinds.keys() == {"missing", "unexpected", "wrong shape", "wrong dtype", "tokenizer"}


def test_the_message_counts_all_and_shows_a_dozen(copy: Path) -> None:
    into_one_file(copy, {"norm.weight": torch.zeros(256, dtype=torch.bfloat16)})
    with pytest.raises(CheckpointErrors) as caught:
        verify(open_checkpoint(copy))
    assert len(caught.value.problems) == 961
    lines = str(caught.value).splitlines()
    assert "961 problems" in lines[0] and "missing (961):" in lines[1] and lines[-1].strip() == "… and 949 more"
    assert len(lines) == 15


@pytest.mark.parametrize("keep", [0, 5, 1000, 6_000_000])
def test_a_truncated_shard_is_named_and_its_tensors_are_not_listed_one_by_one(copy: Path, keep: int) -> None:
    whole = (copy / FIRST).read_bytes()
    (copy / FIRST).write_bytes(whole[:keep])
    kinds = kinds_of(copy)
    assert kinds.keys() == {"unreadable shards"}
    (finding,) = kinds["unreadable shards"]
    assert finding.startswith(f"{FIRST} is truncated or corrupt at {keep:,} bytes") and "fetch it again" in finding


def test_a_corrupt_header_is_said_clearly(copy: Path) -> None:
    damaged = bytearray((copy / SECOND).read_bytes())
    damaged[8:40] = b"\xff" * 32
    (copy / SECOND).write_bytes(damaged)
    assert kinds_of(copy)["unreadable shards"][0].startswith(f"{SECOND} is truncated or corrupt")


def test_a_missing_shard(copy: Path) -> None:
    (copy / SECOND).unlink()
    (finding,) = kinds_of(copy)["unreadable shards"]
    held = sum(file == SECOND for file in json.loads((copy / INDEX_FILE).read_text())["weight_map"].values())
    assert finding.startswith(f"{SECOND} is not there; {held} needed tensors lie there")


def test_a_part_of_the_model_needs_only_its_shards(copy: Path) -> None:
    index = json.loads((copy / INDEX_FILE).read_text())["weight_map"]
    (copy / SECOND).unlink()
    here = [name for name, file in index.items() if file == FIRST and not name.endswith(".scale")]
    here = [name for name in here if index.get(name.replace(".weight", ".scale"), FIRST) == FIRST]
    text = [name for name in here if not name.startswith(("vision.", "aligner.", "image_"))]
    loaded = load_weights(open_checkpoint(copy), text)
    assert loaded.keys() == set(text) and len(text) > 50
    there = next(name for name, file in index.items() if file == SECOND and name.startswith("layers."))
    assert "1 needed" in kinds_of(copy, [there])["unreadable shards"][0]


def test_a_part_needs_its_scales_too(copy: Path) -> None:
    tensors = all_tensors(copy)
    for name in ("layers.3.attn.wq_a.scale", "layers.4.attn.wq_a.scale"):
        del tensors[name]
    into_one_file(copy, tensors)
    assert kinds_of(copy, ["layers.3.attn.wq_a.weight"])["missing"] == ("layers.3.attn.wq_a.scale F8_E8M0 [4, 8]",)
    verify(open_checkpoint(copy), ["layers.2.attn.wq_a.weight", "norm.weight"])


def test_a_shard_that_lacks_what_the_index_promises(copy: Path) -> None:
    tensors = load_file(copy / FIRST)
    name = next(name for name in tensors if name.startswith("layers."))
    del tensors[name]
    save_file(tensors, copy / FIRST)
    (finding,) = kinds_of(copy)["missing"]
    assert finding.startswith(name) and finding.endswith(f"though the index places it in {FIRST}")


def test_a_tensor_stored_twice(copy: Path) -> None:
    tensors = load_file(copy / SECOND) | {"embed.weight": torch.zeros(2048, 256, dtype=torch.bfloat16)}
    tensors |= {"head.weight": torch.zeros(2048, 256, dtype=torch.bfloat16)}
    save_file(tensors, copy / SECOND)
    assert set(kinds_of(copy)["stored twice"]) <= {"embed.weight", "head.weight"}


def test_v4_tensors_are_refused_with_the_reason(copy: Path) -> None:
    tensors = all_tensors(copy)
    tensors["hc_head_fn"] = torch.zeros(1)
    tensors["layers.2.attn.compressor.ape"] = torch.zeros(1)
    tensors["layers.0.hc_attn_norm.weight"] = torch.zeros(1)
    into_one_file(copy, tensors)
    assert kinds_of(copy)["unexpected"] == (
        "hc_head_fn (V4 has an mHC head; V4.1 has none)",
        "layers.0.hc_attn_norm.weight (the mHC norm must be folded into hc_attn_fn)",
        "layers.2.attn.compressor.ape (V4's compressor has a position bias; V4.1's has none)",
    )


def test_vision_tensors_without_a_vision_config_are_still_skipped(copy: Path) -> None:
    edit_json(copy / "config.json", lambda raw: raw.pop("vision_config"))
    assert verify(open_checkpoint(copy)) == ["26 vision tensors are skipped: images are not supported, text is"]


def test_without_a_tokenizer_nothing_is_recounted(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    checkpoint = open_checkpoint(copy)
    assert checkpoint.engram_classes is None and checkpoint.tokenizer_path is None
    verify(checkpoint)


def fault(folder: Path) -> str:
    with pytest.raises(CheckpointErrors) as caught:
        open_checkpoint(folder)
    return str(caught.value)


def test_folders_that_are_none(tmp_path: Path) -> None:
    assert "does not exist" in fault(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "is a file; give the folder" in fault(tmp_path / "file")
    empty = fault(tmp_path)
    assert "config.json is missing" in empty and "found no .safetensors file" in empty


def test_config_and_index_faults_are_listed_together(copy: Path) -> None:
    edit_json(copy / "config.json", lambda raw: raw["text_config"].update(hidden_act="gelu", num_key_value_heads=2))
    (copy / INDEX_FILE).write_text("{]")
    text = fault(copy)
    assert "hidden_act is 'gelu'" in text and "num_key_value_heads is 2" in text and f"{INDEX_FILE} is not JSON" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "holds a list, not an object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "'../x.safetensors', which is not a plain file name"),
        ('{"weight_map": {"a": "x.bin"}}', "'x.bin', which is not a plain file name"),
        ('{"weight_map": {"a": 3}}', "'3', which is not a plain file name"),
    ],
)
def test_an_index_that_is_none(copy: Path, content: str, said: str) -> None:
    (copy / INDEX_FILE).write_text(content)
    assert said in fault(copy)


def test_shards_without_an_index_are_not_guessed_at(copy: Path) -> None:
    (copy / INDEX_FILE).unlink()
    assert "found 2 other .safetensors files" in fault(copy)
