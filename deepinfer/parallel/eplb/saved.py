"""A placement and the loads behind it in a file: safetensors, readable by any tool, with a digest of what is in it.

Legend: W steps of a window · L layers · E experts · P slots of all ranks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from deepinfer.parallel.placement import Placement

FORMAT = "deepinfer.placement.1"


@dataclass(frozen=True)
class Saved:
    placement: Placement
    load_WLE: np.ndarray  # int64, of all ranks together; W may be 0


def write_placement(path: str | Path, saved: Saved) -> None:
    """Replaces the file only once all of it is written. Raises OSError, ValueError where the path can name no file."""
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    for each in (path, beside):
        if each.exists() and not each.is_file():  # a pipe would wait for a reader
            raise OSError(f"{each.name} is there and no regular file, and is not replaced")
    tensors = {"expert_LP": saved.placement.expert_LP.astype(np.int64), "load_WLE": saved.load_WLE.astype(np.int64)}
    about = {
        "format": FORMAT,
        "experts": str(saved.placement.num_experts),
        "ranks": str(saved.placement.num_ranks),
        "digest": _digest(tensors),
    }
    try:
        beside.write_bytes(save(tensors, about))
        beside.replace(path)
    except BaseException:
        if beside.is_file():
            beside.unlink()
        raise


def read_placement(path: str | Path, *, layers: int, experts: int, ranks: int, slots: int) -> Saved:
    """What `write_placement` wrote. Raises ValueError, which says what was found, where it is damaged or of another layout."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    except (OSError, SafetensorError) as error:
        raise ValueError(f"no placement can be read: {str(error).splitlines()[0]}") from error
    if about.get("format") != FORMAT or set(tensors) != {"expert_LP", "load_WLE"}:
        raise ValueError("this is no placement that llm.experts.save wrote")
    if about.get("digest") != _digest(tensors):
        raise ValueError("the file is damaged: its content is not what was written")
    expert_LP, load_WLE = tensors["expert_LP"], tensors["load_WLE"]
    if not (about.get("experts", "").isdecimal() and about.get("ranks", "").isdecimal()):
        raise ValueError("the file does not say of how many experts and ranks it is")
    if expert_LP.ndim != 2 or expert_LP.dtype != np.int64:
        raise ValueError(f"expert_LP is {_kind(expert_LP)}, not int64 of layers and slots")
    found = (len(expert_LP), int(about["experts"]), int(about["ranks"]), expert_LP.shape[1])
    if found != (layers, experts, ranks, slots):
        of = "it is of {} layers with {} experts, on {} ranks in {} slots".format(*found)
        here = f"this plan has {layers} layers with {experts} experts, on {ranks} ranks in {slots} slots"
        raise ValueError(f"{of}; {here}")
    _check_content(expert_LP, load_WLE, experts)
    return Saved(Placement(expert_LP, experts, ranks), load_WLE)


def _check_content(expert_LP: np.ndarray, load_WLE: np.ndarray, experts: int) -> None:
    """Raises ValueError: whoever wrote the digest may have been wrong about the rest."""
    if expert_LP.min() < 0 or expert_LP.max() >= experts:
        wrong = int(expert_LP[(expert_LP < 0) | (expert_LP >= experts)][0])
        raise ValueError(f"a slot holds expert {wrong}, and experts count from 0 to {experts - 1}")
    for layer, expert_P in enumerate(expert_LP):
        if missing := sorted(set(range(experts)) - set(expert_P.tolist())):
            raise ValueError(f"no slot of layer {layer} holds expert {missing[0]}")
    if load_WLE.dtype != np.int64 or load_WLE.shape[1:] != (len(expert_LP), experts):
        raise ValueError(
            f"load_WLE is {_kind(load_WLE)}, not int64 of steps, {len(expert_LP)} layers and {experts} experts"
        )
    if load_WLE.size and load_WLE.min() < 0:
        raise ValueError(f"a load is {int(load_WLE.min())} rows, and loads count from 0")


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _digest(tensors: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        sha.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return sha.hexdigest()
