"""The tensor table against a real file's header and against the counted totals of small configs."""

import json
import struct
from pathlib import Path
from typing import Any

from deepinfer.arch.config import parse_config
from deepinfer.arch.tensors import tensor_table


def read_header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    return header


def test_table_equals_the_golden_checkpoint(tiny_a: dict[str, Any]) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
    stored: dict[str, Any] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        stored |= read_header(shard)
    table = {spec.name: (spec.dtype, list(spec.shape)) for spec in tensor_table(parse_config(tiny_a))}
    assert table == {name: (entry["dtype"], entry["shape"]) for name, entry in stored.items()}
    assert len(table) == 962


def test_bytes_equal_the_golden_checkpoint(tiny_a: dict[str, Any]) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
    stored = sum(
        end - begin
        for shard in folder.glob("*.safetensors")
        for begin, end in (e["data_offsets"] for e in read_header(shard).values())
    )
    assert sum(spec.nbytes for spec in tensor_table(parse_config(tiny_a))) == stored


def test_scales_stand_beside_their_weights(tiny_a: dict[str, Any]) -> None:
    names = {spec.name: spec for spec in tensor_table(parse_config(tiny_a))}
    for name, spec in names.items():
        if spec.dtype in ("F8_E4M3", "I8"):
            assert name.removesuffix("weight") + "scale" in names
