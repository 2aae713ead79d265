"""Compare what a checkpoint holds with the tensor table of its config: everything wrong is listed together."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from deepinfer.arch.tensors import TensorSpec, tensor_table
from deepinfer.model.checkpoint.errors import CheckpointErrors
from deepinfer.model.checkpoint.reader import Checkpoint

_VISION_PREFIXES = ("vision.", "aligner.", "image_start", "image_end", "image_newline")
# part of a name → what a file with such tensors is
_FOREIGN = {
    "hc_head_": "V4 has an mHC head; V4.1 has none",
    "hc_attn_norm": "the mHC norm must be folded into hc_attn_fn",
    "hc_ffn_norm": "the mHC norm must be folded into hc_ffn_fn",
    "compressor.ape": "V4's compressor has a position bias; V4.1's has none",
    "indexer.compressor.": "V4's indexer has a compressor of its own; V4.1's has none",
    "tid2eid": "V4 routes some layers by hash; V4.1 has no such table",
}


def verify(
    checkpoint: Checkpoint, names: Collection[str] | None = None, table: Sequence[TensorSpec] | None = None
) -> list[str]:
    """Check headers against `table` (by default that of the checkpoint's config); returns notices for the user.

    `names` are the tensors that must be there, scales included or not; None means all. Tensors outside `names` may be
    missing, but whatever is there must be right. Raises CheckpointErrors with all findings.
    """
    table = tensor_table(checkpoint.config) if table is None else table
    specs = {spec.name: spec for spec in table}
    wanted = set(specs) if names is None else _with_scales(set(names), specs)
    findings: dict[str, list[str]] = defaultdict(list)
    _check_shards(checkpoint, wanted, findings)
    _check_names(checkpoint, wanted, specs, findings)
    for name in specs.keys() & checkpoint.stored.keys():
        spec, found = specs[name], checkpoint.stored[name]
        if found.shape != spec.shape:
            findings["wrong shape"].append(f"{name} is {list(found.shape)}, config.json needs {list(spec.shape)}")
        if found.dtype != spec.dtype:
            findings["wrong dtype"].append(f"{name} is {found.dtype}, the release stores {spec.dtype}")
    _check_classes(checkpoint, findings)
    if findings:
        raise CheckpointErrors(checkpoint.path, {kind: sorted(found) for kind, found in findings.items()})
    return _notices(checkpoint)


def _with_scales(names: set[str], specs: dict[str, TensorSpec]) -> set[str]:
    scales = {name.removesuffix(".weight") + ".scale" for name in names if name.endswith(".weight")}
    return names | (scales & specs.keys())


def _check_shards(checkpoint: Checkpoint, wanted: set[str], findings: dict[str, list[str]]) -> None:
    by_file: dict[str, list[str]] = defaultdict(list)
    for name, file in checkpoint.indexed.items():
        if name in wanted:
            by_file[file].append(name)
    for file, reason in checkpoint.broken.items():
        needed = by_file[file]
        if needed or not checkpoint.indexed:
            held = f"; {len(needed)} needed tensors lie there, {min(needed)} first" if needed else ""
            findings["unreadable shards"].append(f"{file} {reason}{held}")
    if checkpoint.duplicates:
        findings["stored twice"] += checkpoint.duplicates


def _check_names(
    checkpoint: Checkpoint, wanted: set[str], specs: dict[str, TensorSpec], findings: dict[str, list[str]]
) -> None:
    for name in wanted - checkpoint.stored.keys():
        file = checkpoint.indexed.get(name)
        if file in checkpoint.broken or (file is None and checkpoint.broken and not checkpoint.indexed):
            continue  # the shard has been reported
        told = f", though the index places it in {file}" if file else ""
        shape = f" {specs[name].dtype} {list(specs[name].shape)}" if name in specs else ""
        findings["missing"].append(f"{name}{shape}{told}")
    for name in (checkpoint.stored.keys() | checkpoint.indexed.keys()) - specs.keys():
        if not name.startswith(_VISION_PREFIXES):
            why = next((f" ({reason})" for part, reason in _FOREIGN.items() if part in name), "")
            findings["unexpected"].append(name + why)


def _check_classes(checkpoint: Checkpoint, findings: dict[str, list[str]]) -> None:
    classes = checkpoint.engram_classes
    if classes is None:
        return
    counted, told = int(classes.max()) + 1, checkpoint.config.engram_compressed_vocab_size
    if counted != told:
        findings["tokenizer"].append(
            f"its {checkpoint.config.vocab_size} tokens form {counted} engram classes, config.json says "
            f"engram_compressed_vocab_size={told}: every n-gram would hash to another row. This tokenizer.json is not "
            "the one the checkpoint was made with"
        )


def _notices(checkpoint: Checkpoint) -> list[str]:
    count = sum(name.startswith(_VISION_PREFIXES) for name in checkpoint.stored)
    return [f"{count} vision tensors are skipped: images are not supported, text is"] if count else []
