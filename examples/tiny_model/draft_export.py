"""Put a trained drafter into a checkpoint, with its calibration and its report; all other tensors stay, byte for byte.

python -m examples.tiny_model.draft_export --run runs/drafter --checkpoint deepinfer/assets/v41_tiny
"""

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.writer import write_checkpoint
from examples.tiny_model.draft_calibrate import CALIBRATION_FILE, REPORT_FILE
from examples.tiny_model.released_names import DRAFT, released_tensors
from examples.tiny_model.state import load_progress, load_tensors

PROVENANCE_FILE = "training.json"


def draft_tensors(run: Path) -> dict[str, Tensor]:
    """The run's float masters under released names."""
    weights = load_tensors(run, "weights")
    return released_tensors(weights, weights.pop("bias_LE"), DRAFT)


def draft_record(run: Path) -> dict[str, Any]:
    """What the run said about itself, with the hash of its weights."""
    progress = load_progress(run)
    assert progress is not None, "weights were loaded from here"
    hashes = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in progress["weights"]}
    return {key: value for key, value in progress.items() if key != "weights"} | {"master_weights_sha256": hashes}


def stored_tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint as it is stored, scales included."""
    opened = open_checkpoint(checkpoint)
    with opened.reading() as read:
        return {name: read(name).clone() for name in opened.stored}


def replace_drafter(run: Path, checkpoint: Path) -> None:
    """Write the run's drafter into `checkpoint`. The folder is replaced whole; other files in it are kept."""
    before = stored_tensors(checkpoint)
    trunk = {name: tensor for name, tensor in before.items() if not name.startswith(DRAFT)}
    config_json = json.loads((checkpoint / "config.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder)
        for file in checkpoint.iterdir():
            if file.suffix != ".safetensors" and file.name not in ("config.json", "model.safetensors.index.json"):
                shutil.copyfile(file, kept / file.name)
        for name in (CALIBRATION_FILE, REPORT_FILE):
            if (run / name).is_file():
                shutil.copyfile(run / name, kept / name)
        record = json.loads((kept / PROVENANCE_FILE).read_text()) | {"draft_module": draft_record(run)}
        (kept / PROVENANCE_FILE).write_text(json.dumps(record, indent=1) + "\n")
        files = sorted(kept.iterdir())
        write_checkpoint(checkpoint, config_json, trunk | draft_tensors(run), tokenizer_files=files, replace=True)
    after = stored_tensors(checkpoint)
    assert after.keys() == before.keys(), "the tensor list is the config's"
    for name, tensor in trunk.items():
        same = tensor.dtype == after[name].dtype and torch.equal(
            tensor.view(torch.uint8), after[name].view(torch.uint8)
        )
        assert same, f"{name} changed"


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    replace_drafter(arguments.run, arguments.checkpoint)
    total = sum(file.stat().st_size for file in arguments.checkpoint.glob("*.safetensors"))
    print(f"{arguments.checkpoint}: {total:,} bytes of weights")


if __name__ == "__main__":
    main()
