"""Facts of a checkpoint folder without its weights: config.json, the shard index and the safetensors headers.

A safetensors file begins with eight bytes (little-endian length) and a JSON header of names, dtypes, shapes and
offsets: https://huggingface.co/docs/safetensors. Reading the headers of 48 shards takes well under a second.
"""

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from deepinfer.config.json_file import MAX_JSON_BYTES, is_count, parse_object, read_object, shown

INDEX = "model.safetensors.index.json"
SHOWN_PROBLEMS = 8  # of one kind; a spoiled index can hold tens of thousands
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
    if fault := _fault_of_folder(folder):
        return CheckpointFacts(folder=str(folder), problems=(fault,))
    config = _json_object(folder / "config.json", problems, wanted=True)
    generation = _json_object(folder / "generation_config.json", problems, wanted=False)
    tensors: dict[str, StoredTensor] = {}
    num_bytes, digest = 0, hashlib.sha256()
    named = _shards(folder, problems) if with_tensors else []
    files = [file for file in named if _is_file(file, problems)]
    for file in files:
        try:
            stored, num_stored = _stored(file)
            digest.update(_content(file))
        except (OSError, ValueError) as error:
            problems.append(f"{shown(file.name)} cannot be read: {getattr(error, 'strerror', None) or error}")
            continue
        twice = [shown(name) for name in stored if name in tensors]
        problems += _shortened(f"{name} is in more than one shard" for name in twice)
        tensors |= stored
        num_bytes += num_stored
    return CheckpointFacts(
        folder=str(folder),
        config=config,
        generation=generation or {},
        tensors=tensors,
        num_bytes=num_bytes,
        files=tuple(file.name for file in files),
        missing_files=tuple(file.name for file in named if file not in files),
        digest=digest.hexdigest()[:16] if files else "",
        problems=tuple(problems),
    )


def _fault_of_folder(folder: Path) -> str:
    """Why nothing can be read in `folder`; empty where it is a folder."""
    try:
        return "" if stat.S_ISDIR(os.stat(folder).st_mode) else "it is a file; give the folder that holds config.json"
    except (FileNotFoundError, NotADirectoryError):
        return "the folder does not exist"
    except (OSError, ValueError) as error:  # a name too long, a NUL in it, no permission
        return f"the folder cannot be opened: {getattr(error, 'strerror', None) or error}"


def _json_object(path: Path, problems: list[str], *, wanted: bool) -> dict[str, Any] | None:
    try:
        return read_object(path)
    except FileNotFoundError:
        problems += [f"{path.name} is missing"] if wanted else []
    except ValueError as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return None


def _shards(folder: Path, problems: list[str]) -> list[Path]:
    """The shards that the index names, or every safetensors file where there is no index."""
    try:
        weight_map = read_object(folder / INDEX).get("weight_map")
    except FileNotFoundError:
        return sorted(folder.glob("*.safetensors"))
    except ValueError as error:
        problems.append(f"{INDEX} cannot be read: {error}")
        return []
    if not isinstance(weight_map, dict) or not weight_map:
        problems.append(f"{INDEX} cannot be read: it has no weight_map of tensor names to files")
        return []
    strange = {tensor: file for tensor, file in weight_map.items() if not _is_plain_name(file)}
    problems += _shortened(
        f"{INDEX} names {shown(str(file))} for {shown(tensor)}, which is not the plain name of a .safetensors file"
        for tensor, file in strange.items()
    )
    return [folder / name for name in sorted({file for file in weight_map.values() if _is_plain_name(file)})]


def _is_plain_name(file: object) -> bool:
    """Whether an index may name `file`: never one outside the folder."""
    return isinstance(file, str) and file.endswith(".safetensors") and not any(sign in file for sign in "/\\\0")


def _is_file(path: Path, problems: list[str]) -> bool:
    """Whether a shard is there; one that cannot even be looked for is a problem, one that is absent is not."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:  # a name too long, or one that no file system can spell
        problems.append(f"{shown(path.name)} cannot be read: {getattr(error, 'strerror', None) or error}")
        return False


def _stored(path: Path) -> tuple[dict[str, StoredTensor], int]:
    """The tensors of a shard and the bytes that they take. Raises OSError and ValueError with what is wrong."""
    with path.open("rb") as file:
        num_file_bytes = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MAX_JSON_BYTES, num_file_bytes - 8):
            raise ValueError(f"header length {length} does not fit the file")
        header = parse_object(file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is not an object of texts")
    tensors: dict[str, StoredTensor] = {}
    num_bytes = last_byte = 0
    for name, entry in header.items():
        tensors[name], (begin, end) = _entry(name, entry)
        num_bytes, last_byte = num_bytes + end - begin, max(last_byte, end)
    if num_file_bytes < 8 + length + last_byte:
        raise ValueError(f"it ends {8 + length + last_byte - num_file_bytes} bytes early")
    return tensors, num_bytes


def _entry(name: str, entry: object) -> tuple[StoredTensor, tuple[int, int]]:
    """One tensor of a header, and its first and past-the-last byte. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"its header has no object for {shown(name)}")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ValueError(f"its header gives {shown(name)} no dtype")
    if not isinstance(shape, list) or not all(is_count(size) for size in shape):
        raise ValueError(f"its header gives {shown(name)} no shape, which is a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_count(offset) for offset in offsets):
        raise ValueError(f"its header gives {shown(name)} no data_offsets, which are two whole numbers")
    if offsets[0] > offsets[1]:
        raise ValueError(f"its header ends {shown(name)} before its begin")
    return StoredTensor(dtype, tuple(shape)), (offsets[0], offsets[1])


def _shortened(sentences: Iterable[str]) -> list[str]:
    """The first few sentences of one kind and how many more there are."""
    every = list(sentences)
    more = len(every) - SHOWN_PROBLEMS
    return [*every[:SHOWN_PROBLEMS], *([f"… and {more} more of this kind"] if more > 0 else [])]


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
