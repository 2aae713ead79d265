"""Write the trained tensors as a checkpoint in the released format.

    python -m examples.tiny_model.export --run runs/tiny --output deepinfer/assets/v41_tiny

The draft module (`mtp.*`) is trained later, on what this model says. `--drafter` takes one from its run; without it, it gets
random weights of a sane size, so that the checkpoint is complete, and files about an earlier drafter are left out.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from deepinfer.arch.config import parse_config
from deepinfer.arch.tensors import tensor_table
from deepinfer.model.checkpoint.dummy import dummy_weights
from deepinfer.model.checkpoint.storage import is_scale
from deepinfer.model.checkpoint.writer import write_checkpoint
from examples.tiny_model.draft_calibrate import CALIBRATION_FILE, REPORT_FILE
from examples.tiny_model.draft_export import PROVENANCE_FILE, draft_record, draft_tensors
from examples.tiny_model.released_names import released_tensors
from examples.tiny_model.state import load_progress, load_tensors
from examples.tiny_model.train import HERE, TOKENIZER

DRAFT_SEED = 5
# Files of an earlier export that belong beside the weights and are kept.
COMPANIONS = ("MODEL_CARD.md", "LICENSE", "eval.json", "generation_config.json")


def export(run: Path, output: Path, drafter: Path | None = None) -> None:
    """Quantise and write. Raises ValueError for a run without weights, CheckpointErrors for tensors that do not fit."""
    config_json = json.loads((HERE / "config.json").read_text())
    config = parse_config(config_json)
    weights = load_tensors(run, "weights")
    bias = weights.pop("bias_LE")
    tensors = released_tensors(weights, bias)
    if drafter is None:
        draft = [spec.name for spec in tensor_table(config) if spec.group == "draft" and not is_scale(spec)]
        tensors |= dummy_weights(config, draft, seed=DRAFT_SEED)
        draft_module: object = f"random, seed {DRAFT_SEED}; trained separately"
    else:
        tensors |= draft_tensors(drafter)
        draft_module = draft_record(drafter)
    provenance = run / PROVENANCE_FILE
    provenance.write_text(json.dumps(training_record(run) | {"draft_module": draft_module}, indent=1) + "\n")
    companions = [output / name for name in COMPANIONS if (output / name).is_file()]
    if drafter is not None:
        companions += [drafter / name for name in (CALIBRATION_FILE, REPORT_FILE) if (drafter / name).is_file()]
    files = [TOKENIZER, TOKENIZER.with_name("tokenizer_config.json"), provenance, *companions]
    # The files are read before the folder they may lie in is replaced.
    write_checkpoint(output, config_json, tensors, tokenizer_files=files, replace=True)


def training_record(run: Path) -> dict[str, object]:
    """What the run said about itself, with the hashes of its weights."""
    progress = load_progress(run)
    assert progress is not None, "weights were loaded from here"
    hashes = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in progress["weights"]}
    record = {key: value for key, value in progress.items() if key != "weights"}
    record["arguments"].pop("output", None)
    return record | {"master_weights_sha256": hashes}


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, help="folder of a drafter that was trained on this model")
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    export(arguments.run, arguments.output, arguments.drafter)
    total = sum(file.stat().st_size for file in arguments.output.glob("*.safetensors"))
    print(f"{arguments.output}: {total:,} bytes of weights")


if __name__ == "__main__":
    main()
