"""Training state on disk: safetensors and JSON, in parts small enough to move around."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PART_BYTES = 15_000_000
PROGRESS_FILE = "progress.json"


def save_state(folder: Path, kind: str, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    """Write `kind`-N.safetensors parts of at most 15 MB, then progress.json, which makes them count."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        stored = tensor.detach().cpu().contiguous()
        if size and size + stored.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = stored
        size += stored.nbytes
    files = []
    for index, part in enumerate(parts):
        files.append(f"{kind}-{index}.safetensors")
        save_file(part, folder / files[-1])
    record = {}
    if (folder / PROGRESS_FILE).is_file():
        record = json.loads((folder / PROGRESS_FILE).read_text())
    record |= progress | {kind: files}
    draft = folder / (PROGRESS_FILE + ".partial")
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(folder / PROGRESS_FILE)


def load_progress(folder: Path) -> dict[str, Any] | None:
    file = folder / PROGRESS_FILE
    return json.loads(file.read_text()) if file.is_file() else None


def load_tensors(folder: Path, kind: str, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    progress = load_progress(folder)
    if progress is None or kind not in progress:
        raise ValueError(
            f"{folder} holds no training state of kind {kind!r}; train first, or name the folder that was trained into"
        )
    tensors: dict[str, Tensor] = {}
    for file in progress[kind]:
        tensors |= load_file(folder / file, device=str(device))
    return tensors
