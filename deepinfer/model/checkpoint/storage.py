"""How each tensor of the table is stored, and the way there and back: quantise a float master, dequantise what was read."""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from msgspec import structs
from torch import Tensor

from deepinfer.arch.tensors import TensorSpec
from deepinfer.formats import (
    dequantise_fp4_experts,
    dequantise_fp8_blocks,
    dequantise_fp8_rows,
    quantise_fp4_experts,
    quantise_fp8_blocks,
    quantise_fp8_rows,
)

Storage = Literal["plain", "fp8_blocks", "fp8_rows", "fp4"]
Rows = Mapping[str, tuple[int, int]]  # weight → the half-open range of its rows that is wanted, where not all are
TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
}
_QUANTISERS: dict[Storage, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "fp8_blocks": quantise_fp8_blocks,
    "fp8_rows": quantise_fp8_rows,
    "fp4": quantise_fp4_experts,
}
_DEQUANTISERS: dict[Storage, Callable[[Tensor, Tensor, torch.dtype], Tensor]] = {
    "fp8_blocks": dequantise_fp8_blocks,
    "fp8_rows": dequantise_fp8_rows,
    "fp4": dequantise_fp4_experts,
}


def storage_of(spec: TensorSpec) -> Storage:
    """The storage of a weight (not of a scale). Engram tables are gathered by row, so their scales go by row too."""
    if spec.dtype == "I8":
        return "fp4"
    if spec.dtype == "F8_E4M3":
        return "fp8_rows" if spec.name.endswith("engram.embed.weight") else "fp8_blocks"
    return "plain"


def part_of(spec: TensorSpec, rows: tuple[int, int] | None) -> TensorSpec:
    """The weight of these rows alone, whose scales go by row too; None: of all."""
    if rows is None:
        return spec
    first, end = rows
    assert storage_of(spec) != "fp8_blocks" and 0 <= first <= end <= spec.shape[0], f"rows {rows} of {spec.name}"
    return structs.replace(spec, shape=(end - first, *spec.shape[1:]))


def is_scale(spec: TensorSpec) -> bool:
    return spec.dtype == "F8_E8M0"


def scale_name(weight_name: str) -> str:
    """`X.weight` → `X.scale`."""
    return weight_name.removesuffix(".weight") + ".scale"


def master_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Shape of the numbers a stored weight stands for: an FP4 byte holds two columns."""
    return (*spec.shape[:-1], spec.shape[-1] * 2) if spec.dtype == "I8" else spec.shape


def loaded_dtype(spec: TensorSpec, dtype: torch.dtype) -> torch.dtype:
    """What the reference computes with: F32 tensors (mHC, sinks, router biases) are never narrowed to bfloat16."""
    return torch.promote_types(dtype, torch.float32) if spec.dtype == "F32" else dtype


def quantise(spec: TensorSpec, master: Tensor) -> dict[str, Tensor]:
    """The stored tensors, by name, of a float master: the weight itself, and its scale where it has one."""
    storage = storage_of(spec)
    if storage == "plain":
        return {spec.name: master.detach().to(TORCH_DTYPES[spec.dtype])}
    weight, scale = _QUANTISERS[storage](master)
    return {spec.name: weight, scale_name(spec.name): scale.view(torch.float8_e8m0fnu)}


def dequantise(spec: TensorSpec, weight: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The numbers of a stored weight in memory of their own. `scale` is None exactly for plain storage."""
    storage, dtype = storage_of(spec), loaded_dtype(spec, dtype)
    if storage == "plain":
        return weight.to(dtype, copy=True)
    assert scale is not None, f"{spec.name} is stored with a scale"
    return _DEQUANTISERS[storage](weight, scale, dtype)


def as_stored(spec: TensorSpec, master: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that writing `master` and reading it back would give, without a file."""
    stored = quantise(spec, master)
    return dequantise(spec, stored[spec.name], stored.get(scale_name(spec.name)), dtype)
