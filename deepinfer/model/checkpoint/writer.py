"""Write a checkpoint in the released format: quantised as the tensor table says, in shards, whole or not at all."""

import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from deepinfer.arch.config import ConfigErrors, V41Config, parse_config
from deepinfer.arch.tensors import TensorSpec, tensor_table
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.reader import INDEX_FILE, open_checkpoint
from deepinfer.model.checkpoint.storage import TORCH_DTYPES, is_scale, master_shape, quantise, scale_name
from deepinfer.model.checkpoint.verify import verify

DEFAULT_SHARD_BYTES = 5 * 2**30

Weight = tuple[TensorSpec, TensorSpec | None]  # a weight and its scale
Findings = dict[str, list[str]]


def write_checkpoint(
    path: Path | str,
    config_json: dict[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    tokenizer_files: Iterable[Path] = (),
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    replace: bool = False,
) -> None:
    """Write folder `path`: config.json as given, shards of at most `max_shard_bytes` with an index, tokenizer files copied.

    A tensor is either a float master, quantised here as the table asks, or already in its stored dtype with its `X.scale`
    beside it. Each is taken once, shard by shard, so a lazy mapping keeps the peak at one shard. The folder appears
    complete or not at all: it is written beside `path`, checked, and renamed. `replace` allows `path` to exist.
    Raises CheckpointErrors with everything that is missing, unexpected, misshapen, of a wrong dtype or not finite.
    """
    path = Path(path).expanduser().absolute()
    if path.exists() and not replace:
        raise CheckpointErrors(path, {"folder": ["exists already; choose another one, or ask to replace it"]})
    try:
        config = parse_config(config_json)
    except ConfigErrors as error:
        raise CheckpointErrors(path, {"config.json": error.problems}) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        draft.chmod(0o755)  # mkdtemp's folder is private, a checkpoint is not
        _write_json(draft / "config.json", config_json)
        for file in tokenizer_files:
            shutil.copyfile(file, draft / Path(file).name)
        findings = _write_shards(draft, config, tensors, max_shard_bytes)
        if any(findings.values()):
            raise CheckpointErrors(path, findings)
        verify(open_checkpoint(draft))
        _move_into_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write_shards(folder: Path, config: V41Config, tensors: Mapping[str, Tensor], max_bytes: int) -> Findings:
    """Write shards and index; returns what is wrong with `tensors`, and writes nothing further once something is."""
    specs = {spec.name: spec for spec in tensor_table(config)}
    findings: Findings = defaultdict(list)
    findings["unexpected"] += sorted(tensors.keys() - specs.keys())
    weights = [(spec, specs.get(scale_name(spec.name))) for spec in specs.values() if not is_scale(spec)]
    shards = _split(weights, max_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        content: dict[str, Tensor] = {}
        for weight in shard:
            content |= _stored(weight, tensors, findings)
        if not any(findings.values()):
            save_file(content, folder / file, metadata={"format": "pt"})
            (folder / file).chmod(0o644)  # the library writes private files, a checkpoint is not
            weight_map |= dict.fromkeys(content, file)
    total = sum(spec.nbytes for spec in specs.values())
    _write_json(
        folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    )
    return findings


def _split(weights: list[Weight], max_bytes: int) -> list[list[Weight]]:
    """Consecutive weights, each with its scale, in shards that hold at most `max_bytes` unless a single one is larger."""
    shards: list[list[Weight]] = [[]]
    size = 0
    for weight in weights:
        needed = sum(spec.nbytes for spec in weight if spec is not None)
        if shards[-1] and size + needed > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(weight)
        size += needed
    return shards


def _stored(weight: Weight, tensors: Mapping[str, Tensor], findings: Findings) -> dict[str, Tensor]:
    """What goes into the file for one weight, by name; empty after noting a finding."""
    spec, scale_spec = weight
    if spec.name not in tensors:
        findings["missing"].append(f"{spec.name} {spec.dtype} {list(spec.shape)}")
        return {}
    given = tensors[spec.name].detach().cpu()
    if scale_spec is not None and scale_spec.name in tensors:
        scale = tensors[scale_spec.name].detach().cpu()
        return _as_given(spec, given, findings) | _as_given(scale_spec, scale, findings)
    if tuple(given.shape) != master_shape(spec):
        findings["wrong shape"].append(
            f"{spec.name} is {list(given.shape)}, config.json needs {list(master_shape(spec))}"
        )
    elif not given.dtype.is_floating_point or given.dtype.itemsize == 1:
        findings["wrong dtype"].append(
            f"{spec.name} is {given.dtype}: not a float master, and no {scale_name(spec.name)} is given"
        )
    elif not bool(given.isfinite().all()):
        findings["not finite"].append(f"{spec.name} holds NaN or infinity")
    else:
        return {name: tensor.contiguous() for name, tensor in quantise(spec, given).items()}
    return {}


def _as_given(spec: TensorSpec, tensor: Tensor, findings: Findings) -> dict[str, Tensor]:
    """An already quantised weight or scale; scales may be given as plain bytes."""
    dtype = TORCH_DTYPES[spec.dtype]
    if tuple(tensor.shape) != spec.shape:
        findings["wrong shape"].append(f"{spec.name} is {list(tensor.shape)}, config.json needs {list(spec.shape)}")
    elif tensor.dtype.itemsize != 1 or (tensor.dtype.is_floating_point and tensor.dtype != dtype):
        findings["wrong dtype"].append(f"{spec.name} is {tensor.dtype}, the release stores {spec.dtype}")
    else:
        return {spec.name: tensor.contiguous().view(dtype)}
    return {}


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _move_into_place(draft: Path, path: Path) -> None:
    if not path.exists():
        draft.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
    os.replace(path, old / path.name)
    draft.rename(path)
    shutil.rmtree(old)
