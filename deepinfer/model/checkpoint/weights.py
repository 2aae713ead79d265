"""Load weights, one tensor at a time: as plain numbers for the reference backend, or as they are stored."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import Group, TensorSpec, tensor_table
from deepinfer.model.checkpoint.reader import Checkpoint
from deepinfer.model.checkpoint.storage import Rows, dequantise, is_scale, part_of, scale_name, storage_of
from deepinfer.model.checkpoint.verify import verify

TEXT_GROUPS: tuple[Group, ...] = ("embed", "head", "dense", "experts", "engram", "draft")
Progress = Callable[[int, int], None]  # bytes done, bytes in all


def weight_specs(config: V41Config, names: Collection[str] | None = None) -> list[TensorSpec]:
    """The weights (no scales) of the text model, in table order; only those in `names` where given.

    Raises ValueError for a name that the model does not have or that belongs to the vision tower.
    """
    specs = [spec for spec in tensor_table(config) if spec.group in TEXT_GROUPS]
    if names is None:
        return [spec for spec in specs if not is_scale(spec)]
    unknown = sorted(set(names) - {spec.name for spec in specs})
    if unknown:
        raise ValueError(f"the text model has no tensor {', '.join(unknown[:5])}" + (" …" if len(unknown) > 5 else ""))
    return [spec for spec in specs if spec.name in names and not is_scale(spec)]


def load_weights(
    checkpoint: Checkpoint,
    names: Collection[str] | None = None,
    *,
    rows: Rows | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Dequantised weights by released name; scales are folded in and do not appear.

    `names` and `rows` limit the work to a rank's part, and only the shards that hold it need to exist. Tensors stored as F32
    stay float32 under dtype bfloat16. Tensors are read in file order, one at a time: the peak is the result plus one tensor.
    Raises CheckpointErrors (everything that is wrong with the part asked for) and ValueError for unknown names.
    """
    specs = weight_specs(checkpoint.config, names)
    verify(checkpoint, [spec.name for spec in specs])
    wanted = rows or {}
    total, done = sum(part_of(spec, wanted.get(spec.name)).nbytes for spec in specs), 0
    loaded: dict[str, Tensor] = {}
    with checkpoint.reading() as read:
        for spec in sorted(specs, key=lambda spec: checkpoint.stored[spec.name].file):
            span = wanted.get(spec.name)
            scale = None if storage_of(spec) == "plain" else read(scale_name(spec.name), span).to(device)
            loaded[spec.name] = dequantise(spec, read(spec.name, span).to(device), scale, dtype)
            done += part_of(spec, span).nbytes
            if progress is not None:
                progress(done, total)
    return {spec.name: loaded[spec.name] for spec in specs}


def load_stored(
    checkpoint: Checkpoint,
    names: Collection[str] | None = None,
    *,
    rows: Rows | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Weights and their scales by released name, in their stored dtypes and in memory of their own.

    `names`, `rows` and what is raised: as in `load_weights`.
    """
    specs, spans = weight_specs(checkpoint.config, names), rows or {}
    verify(checkpoint, [spec.name for spec in specs])
    wanted = {spec.name: spans.get(spec.name) for spec in specs}
    wanted |= {scale_name(spec.name): wanted[spec.name] for spec in specs if storage_of(spec) != "plain"}
    with checkpoint.reading() as read:
        in_file_order = sorted(wanted, key=lambda name: checkpoint.stored[name].file)
        return {name: read(name, wanted[name]).to(device, copy=True) for name in in_file_order}
