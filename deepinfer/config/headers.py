"""Facts of a checkpoint folder without its weights: config.json, the shard index and the safetensors headers.

A safetensors file begins with eight bytes (little-endian length) and a JSON header of names, dtypes, shapes and
offsets: https://huggingface.co/docs/safetensors. Reading the headers of 48 shards takes well under a second.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from msgspec import Struct

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the safetensors library refuses longer ones
WHOLE_FILE_BYTES = 64 * 2**20  # up to here a digest covers every byte of a shard, above it samples
NUM_SAMPLES, SAMPLE_BYTES = 8, 4096


class StoredTensor(Struct, frozen=True):
    """What a header says of one tensor; `dtype` in the safetensors spelling."""

    dtype: str
    shape: tuple[int, ...]


class CheckpointFacts(Struct, frozen=True, kw_only=True):
    """A checkpoint folder as found. `problems` says what is missing or unreadable, one sentence each.

    Shards that the index names and that are not there are no problem by themselves: a rank reads only some of them.
    """

    folder: str
    config: dict[str, Any] | None = None  # config.json as parsed; None where it is absent or broken
    generation: dict[str, Any] = {}  # generation_config.json: how its makers want it sampled
    tensors: dict[str, StoredTensor] = {}
    num_bytes: int = 0  # of all tensors
    files: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    digest: str = ""  # of the weights; empty where there are none
    problems: tuple[str, ...] = ()


def read_checkpoint(folder: Path, *, with_tensors: bool = True) -> CheckpointFacts:
    """Read config.json and, if wanted, every header in `folder`. Raises nothing: what is wrong is in `problems`."""
    problems: list[str] = []
    if not folder.is_dir():
        return CheckpointFacts(folder=str(folder), problems=("the folder does not exist",))
    config = _json_object(folder / "config.json", problems)
    generation = folder / "generation_config.json"
    tensors: dict[str, StoredTensor] = {}
    num_bytes, digest = 0, hashlib.sha256()
    named = _shards(folder, problems) if with_tensors else []
    files = [file for file in named if file.is_file()]
    for file in files:
        header = _header(file, problems)
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in tensors:
                problems.append(f"{name} is in more than one shard")
            tensors[name] = StoredTensor(entry["dtype"], tuple(entry["shape"]))
            num_bytes += entry["data_offsets"][1] - entry["data_offsets"][0]
        digest.update(_content(file))
    return CheckpointFacts(
        folder=str(folder),
        config=config,
        generation=(_json_object(generation, problems) or {}) if generation.is_file() else {},
        tensors=tensors,
        num_bytes=num_bytes,
        files=tuple(file.name for file in files),
        missing_files=tuple(file.name for file in named if file not in files),
        digest=digest.hexdigest()[:16] if files else "",
        problems=tuple(problems),
    )


def _json_object(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return None
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{path.name} holds a {type(value).__name__}, not an object")
        return None
    return value


def _shards(folder: Path, problems: list[str]) -> list[Path]:
    """The shards that the index names, or every safetensors file where there is no index."""
    index = folder / INDEX
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{INDEX} cannot be read: {error!r}")
        return []
    return [folder / name for name in names]


def _header(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER_BYTES, path.stat().st_size - 8):
                raise ValueError(f"header length {length} does not fit the file")
            header: dict[str, Any] = json.loads(file.read(length))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if path.stat().st_size < 8 + length + end:
            raise ValueError(f"it ends {8 + length + end - path.stat().st_size} bytes early")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    return header


def _content(path: Path) -> bytes:
    """Digest of a shard: of every byte when it is small, else of its size, its head and evenly spaced samples."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_FILE_BYTES:
            digest.update(file.read())
        else:
            digest.update(size.to_bytes(8, "little"))
            for index in range(NUM_SAMPLES):
                file.seek(index * (size - SAMPLE_BYTES) // (NUM_SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
