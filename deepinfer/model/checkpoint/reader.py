"""Open a released checkpoint folder: config.json, the index, lazily read shards, and the tokenizer beside them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from deepinfer.arch.config import ConfigErrors, V41Config, parse_config
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.tokens import engram_classes

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
NAME_PREFIX = "model."  # some copies of the release put it before every name


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies and what its header says; `name` as the file spells it, `dtype` as safetensors does."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]


class Read(Protocol):
    """Reads one tensor by its released name, as stored, possibly a view of the mapped file; of a half-open range of rows."""

    def __call__(self, name: str, rows: tuple[int, int] | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Headers are read, weights are not.

    `stored` maps released names to what the shards hold, `indexed` released names to the shard that the index names,
    `broken` unreadable shards to the reason, `duplicates` lists names stored twice.
    """

    path: Path
    raw_config: dict[str, Any]
    config: V41Config
    stored: dict[str, StoredTensor]
    indexed: dict[str, str]
    broken: dict[str, str]
    duplicates: tuple[str, ...]
    tokenizer_path: Path | None
    tokenizer_config_path: Path | None

    @cached_property
    def engram_classes(self) -> np.ndarray | None:
        """Engram class of every token id, int64 [vocab_size]; None without a tokenizer or without engram layers."""
        if self.tokenizer_path is None or not self.config.engram_layer_ids:
            return None
        return engram_classes(self.tokenizer_path, self.config.vocab_size)

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Keeps the touched shards mapped while it is open. Reading a tensor that is not there is a KeyError."""
        with ExitStack() as shards:
            opened: dict[str, Any] = {}

            def read(name: str, rows: tuple[int, int] | None = None) -> Tensor:
                tensor = self.stored[name]
                if tensor.file not in opened:
                    opened[tensor.file] = shards.enter_context(safe_open(self.path / tensor.file, framework="pt"))
                shard = opened[tensor.file]
                return shard.get_tensor(tensor.name) if rows is None else shard.get_slice(tensor.name)[slice(*rows)]

            yield read


def open_checkpoint(path: Path | str) -> Checkpoint:
    """Open the checkpoint in folder `path`.

    Raises CheckpointErrors for a folder, config.json or index that cannot be used. Shards that are missing or broken are
    noted and refused by `verify`, because a rank may need only some of them.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        what = "is a file; give the folder that holds config.json" if path.exists() else "does not exist"
        raise CheckpointErrors(path, {"folder": [f"{path} {what}"]})
    faults: dict[str, list[str]] = {"config.json": [], "index": []}
    raw_config, config = _read_config(path, faults["config.json"])
    indexed = _read_index(path, faults["index"])
    if config is None or any(faults.values()):
        raise CheckpointErrors(path, faults)
    stored: dict[str, StoredTensor] = {}
    broken: dict[str, str] = {}
    duplicates: list[str] = []
    for file in sorted(set(indexed.values()) or {SINGLE_FILE}):
        try:
            headers = _read_headers(path, file)
        except (OSError, SafetensorError) as error:
            broken[file] = _why_broken(path / file, error)
            continue
        for tensor in headers:
            name = tensor.name.removeprefix(NAME_PREFIX)
            duplicates += [name] if name in stored else []
            stored[name] = tensor
    tokenizer, tokenizer_config = path / "tokenizer.json", path / "tokenizer_config.json"
    return Checkpoint(
        path=path,
        raw_config=raw_config,
        config=config,
        stored=stored,
        indexed=indexed or {name: SINGLE_FILE for name in stored},
        broken=broken,
        duplicates=tuple(duplicates),
        tokenizer_path=tokenizer if tokenizer.is_file() else None,
        tokenizer_config_path=tokenizer_config if tokenizer_config.is_file() else None,
    )


def read_index(path: Path) -> dict[str, str]:
    """Released tensor name → shard file, from the index in folder `path`; empty where the weights are one file.

    Raises CheckpointErrors for an index that is not one.
    """
    faults: list[str] = []
    indexed = _read_index(path, faults)
    if faults:
        raise CheckpointErrors(path, {"index": faults})
    return indexed


def _read_config(path: Path, faults: list[str]) -> tuple[dict[str, Any], V41Config | None]:
    raw = _read_json(path / "config.json", faults)
    if raw is None:
        return {}, None
    try:
        return raw, parse_config(raw)
    except ConfigErrors as error:
        faults += error.problems
        return raw, None


def _read_index(path: Path, faults: list[str]) -> dict[str, str]:
    if not (path / INDEX_FILE).is_file():
        if not (path / SINGLE_FILE).is_file():
            others = len(list(path.glob("*.safetensors")))
            found = f"{others} other .safetensors files" if others else "no .safetensors file"
            faults.append(f"neither {INDEX_FILE} nor {SINGLE_FILE} is in {path}; found {found}")
        return {}
    weight_map = (_read_json(path / INDEX_FILE, faults) or {}).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        if not faults:
            faults.append(f"{INDEX_FILE} has no weight_map")
        return {}
    strange = sorted({str(file) for file in weight_map.values() if not _is_plain_name(file)})
    faults += [f"{INDEX_FILE} names {file!r}, which is not a plain file name" for file in strange]
    return {name.removeprefix(NAME_PREFIX): file for name, file in weight_map.items()}


def _is_plain_name(file: object) -> bool:
    return isinstance(file, str) and file == Path(file).name and file.endswith(".safetensors")


def _read_json(file: Path, faults: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        faults.append(f"{file.name} is missing from {file.parent}")
        return None
    except (ValueError, RecursionError) as error:  # broken JSON, other encodings, nesting without end
        faults.append(f"{file.name} is not JSON: {error}")
        return None
    if not isinstance(value, dict):
        faults.append(f"{file.name} holds a {type(value).__name__}, not an object")
        return None
    return value


def _read_headers(path: Path, file: str) -> list[StoredTensor]:
    with safe_open(path / file, framework="pt") as shard:
        slices = ((name, shard.get_slice(name)) for name in shard.keys())  # noqa: SIM118 (not a mapping)
        return [StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape())) for name, part in slices]


def _why_broken(file: Path, error: Exception) -> str:
    if not file.exists():
        return "is not there"
    size = file.stat().st_size
    return f"is truncated or corrupt at {size:,} bytes ({error}); fetch it again"
