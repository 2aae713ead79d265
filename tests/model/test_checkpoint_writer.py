"""Writing checkpoints: what is read back, what is refused, and that a folder is whole or absent."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from deepinfer.arch.config import parse_config
from deepinfer.arch.tensors import TensorSpec, tensor_table
from deepinfer.formats import fake_fp4_experts, fake_fp8_blocks, fake_fp8_rows
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.reader import INDEX_FILE, open_checkpoint
from deepinfer.model.checkpoint.storage import as_stored, is_scale, master_shape
from deepinfer.model.checkpoint.verify import verify
from deepinfer.model.checkpoint.weights import load_weights
from deepinfer.model.checkpoint.writer import write_checkpoint

TINY_A = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
RAW_CONFIG = json.loads((TINY_A / "config.json").read_text())
SPECS = [spec for spec in tensor_table(parse_config(RAW_CONFIG)) if not is_scale(spec)]


def masters(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    return {spec.name: torch.randn(master_shape(spec), generator=generator, dtype=dtype) * 0.05 for spec in SPECS}


def fake_quantised(spec: TensorSpec, master: torch.Tensor) -> torch.Tensor:
    if spec.dtype == "I8":
        return fake_fp4_experts(master)
    if spec.dtype == "F8_E4M3":
        return (fake_fp8_rows if spec.name.endswith("engram.embed.weight") else fake_fp8_blocks)(master)
    return master.to(torch.bfloat16).to(master.dtype) if spec.dtype == "BF16" else master.float().to(master.dtype)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_written_master_reads_back_as_its_fake_quantised_self(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = masters(dtype)
    write_checkpoint(tmp_path / "out", RAW_CONFIG, tensors, tokenizer_files=[TINY_A / "tokenizer.json"])
    loaded = load_weights(open_checkpoint(tmp_path / "out"), dtype=dtype)
    assert len(loaded) == 567
    for spec in SPECS:
        if spec.name in loaded:
            assert same_bits(loaded[spec.name], fake_quantised(spec, tensors[spec.name])), spec.name
            assert same_bits(loaded[spec.name], as_stored(spec, tensors[spec.name], dtype)), spec.name


def test_stored_tensors_pass_through_unchanged_at_any_shard_size(tmp_path: Path) -> None:
    stored = {name: tensor for file in TINY_A.glob("*.safetensors") for name, tensor in load_file(file).items()}
    for limit, fewest in ((2**40, 1), (2**20, 13), (1, 567)):
        out = tmp_path / str(limit)
        write_checkpoint(out, RAW_CONFIG, stored, max_shard_bytes=limit)
        shards = sorted(out.glob("*.safetensors"))
        assert len(shards) >= fewest and shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
        written = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
        assert written.keys() == stored.keys()
        assert all(same_bits(written[name], stored[name]) for name in stored)
        index = json.loads((out / INDEX_FILE).read_text())
        assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in stored.values())
        assert all(name in load_file(out / file) for name, file in list(index["weight_map"].items())[::97])
        if limit == 2**20:
            sizes = {shard: sum(t.nbytes for t in load_file(shard).values()) for shard in shards}
            assert all(size <= limit for size in sizes.values())


def test_requantising_what_was_read_changes_no_number(tmp_path: Path) -> None:
    first = load_weights(open_checkpoint(TINY_A))
    vision = {spec.name: torch.zeros(spec.shape) for spec in SPECS if spec.group == "vision"}
    write_checkpoint(tmp_path / "again", RAW_CONFIG, first | vision)
    second = load_weights(open_checkpoint(tmp_path / "again"))
    assert all(same_bits(first[name], second[name]) for name in first)


def test_config_and_tokenizer_are_copied_as_they_are(tmp_path: Path) -> None:
    files = [TINY_A / "tokenizer.json", TINY_A / "tokenizer_config.json"]
    write_checkpoint(tmp_path / "deep" / "out", RAW_CONFIG, masters(), tokenizer_files=files)
    out = tmp_path / "deep" / "out"
    assert json.loads((out / "config.json").read_text()) == RAW_CONFIG
    assert all((out / file.name).read_bytes() == file.read_bytes() for file in files)
    assert open_checkpoint(out).tokenizer_config_path == out / "tokenizer_config.json"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_checkpoint(tmp_path / name, RAW_CONFIG, masters(), max_shard_bytes=2**22)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def refusal(path: Path, tensors: Mapping[str, torch.Tensor], config: dict = RAW_CONFIG) -> CheckpointErrors:
    with pytest.raises(CheckpointErrors) as caught:
        write_checkpoint(path, config, tensors)
    assert not list(path.parent.iterdir()), "nothing is left behind"
    return caught.value


def test_everything_wrong_with_the_tensors_is_listed_together(tmp_path: Path) -> None:
    tensors = masters()
    del tensors["norm.weight"]
    tensors["layers.0.extra"] = torch.zeros(1)
    tensors["layers.0.attn.wq_a.weight"] = torch.zeros(128, 128)
    tensors["layers.0.attn.attn_sink"] = torch.zeros(8, dtype=torch.int32)
    tensors["layers.1.attn.wkv.weight"] = torch.full((64, 256), float("nan"))
    tensors["layers.0.ffn.experts.0.w1.weight"] = torch.zeros(96, 128, dtype=torch.int8)  # packed, but no scale
    tensors["layers.0.attn.wq_b.weight"] = torch.zeros(512, 128, dtype=torch.float8_e4m3fn)
    tensors["layers.0.attn.wq_b.scale"] = torch.zeros(16, 4)
    kinds = refusal(tmp_path / "out", tensors).kinds
    assert kinds["missing"] == ("norm.weight BF16 [256]",)
    assert kinds["unexpected"] == ("layers.0.extra",)
    assert kinds["wrong shape"] == (
        "layers.0.attn.wq_a.weight is [128, 128], config.json needs [128, 256]",
        "layers.0.ffn.experts.0.w1.weight is [96, 128], config.json needs [96, 256]",
    )
    assert [finding.split()[0] for finding in kinds["wrong dtype"]] == [
        "layers.0.attn.attn_sink",
        "layers.0.attn.wq_b.scale",
    ]
    assert kinds["not finite"] == ("layers.1.attn.wkv.weight holds NaN or infinity",)


def test_a_bad_config_is_refused(tmp_path: Path) -> None:
    config = RAW_CONFIG | {"model_type": "deepseek_v4"}
    assert "deepseek_v4" in str(refusal(tmp_path / "out", masters(), config))


class Interrupted(Mapping[str, torch.Tensor]):
    """Masters whose 300th look-up fails as a killed process would."""

    def __init__(self) -> None:
        self.tensors, self.left = masters(), 300

    def __getitem__(self, name: str) -> torch.Tensor:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_an_interrupted_write_leaves_nothing_or_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "out", RAW_CONFIG, Interrupted(), max_shard_bytes=2**20)
    assert not list(tmp_path.iterdir())
    write_checkpoint(tmp_path / "out", RAW_CONFIG, masters())
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "out", RAW_CONFIG, Interrupted(), max_shard_bytes=2**20, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    verify(open_checkpoint(tmp_path / "out"))


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "out", RAW_CONFIG, masters())
    (tmp_path / "out" / "note.txt").write_text("mine")
    with pytest.raises(CheckpointErrors, match="exists already"):
        write_checkpoint(tmp_path / "out", RAW_CONFIG, masters())
    assert (tmp_path / "out" / "note.txt").exists()
    write_checkpoint(tmp_path / "out", RAW_CONFIG, masters(), replace=True)
    assert not (tmp_path / "out" / "note.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    config = json.loads(json.dumps(RAW_CONFIG))
    config["text_config"]["engram_compressed_vocab_size"] = 1500
    with pytest.raises(CheckpointErrors, match="1590 engram classes"):
        write_checkpoint(tmp_path / "out", config, masters(), tokenizer_files=[TINY_A / "tokenizer.json"])
    assert not list(tmp_path.iterdir())
