"""Weights without a checkpoint: any size, cheap, sane in value, and the same for a tensor whoever asks for it."""

import hashlib
import math
from collections.abc import Collection

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import TensorSpec
from deepinfer.formats.scales import E8M0_BIAS
from deepinfer.model.checkpoint.storage import (
    TORCH_DTYPES,
    Rows,
    dequantise,
    master_shape,
    part_of,
    scale_name,
    storage_of,
)
from deepinfer.model.checkpoint.weights import weight_specs

POOL_SIZE = 1_048_573  # prime: no row length divides it, so the rows of a matrix differ
RESIDUAL_GAIN = 0.2  # of matrices that write into the residual streams: a random model with gain 1 is chaotic
_FP8_CODE_STD = 2.0  # of the pool's E4M3 codes: far from both ends of the format
_FP4_CODE_STD = math.sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8)  # of uniformly drawn E2M1 codes
# ending of a name → (mean, standard deviation); everything else is a matrix of standard deviation gain / √columns
_KINDS: tuple[tuple[str, float, float], ...] = (
    ("norm.weight", 1.0, 0.0),
    ("q_weight", 1.0, 0.0),
    ("k_weight", 1.0, 0.0),
    ("_scale", 0.5, 0.0),
    ("_base", 0.0, 0.2),
    ("attn_sink", 0.0, 0.5),
    ("gate.bias", 0.0, 0.01),
    ("gate.bias_vl", 0.0, 0.01),
    ("embed.weight", 0.0, 1.0),
)
_RESIDUAL = ("wo_b.weight", "w2.weight", "engram.wkv.weight")


def dummy_stored(
    config: V41Config,
    names: Collection[str] | None = None,
    *,
    rows: Rows | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Invented tensors in their stored dtypes, scales included, as a checkpoint of this config would hold them.

    A tensor depends on `seed` and its own name and shape only. `names` and `rows` limit the work to a part of the text model.
    """
    pools, spans = Pools(seed, device), rows or {}
    found: dict[str, Tensor] = {}
    for spec in weight_specs(config, names):
        found |= pools.stored(spec, spans.get(spec.name))
    return found


def dummy_weights(
    config: V41Config,
    names: Collection[str] | None = None,
    *,
    rows: Rows | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The numbers of `dummy_stored`: what `load_weights` would give had they been written and read. `rows` as there."""
    pools = Pools(seed, device)
    weights = {}
    for spec in weight_specs(config, names):
        stored = pools.stored(spec, None if rows is None else rows.get(spec.name))
        weights[spec.name] = dequantise(spec, stored[spec.name], stored.get(scale_name(spec.name)), dtype)
    return weights


class Pools:
    """Random numbers, E4M3 codes and packed E2M1 codes; a tensor is cut from their endless repetition at its own place."""

    def __init__(self, seed: int, device: torch.device | str) -> None:
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(POOL_SIZE, generator=generator)
        self.seed = seed
        self.numbers = numbers.to(device)
        self.fp8 = (numbers * _FP8_CODE_STD).to(torch.float8_e4m3fn).view(torch.uint8).to(device)
        self.fp4 = torch.randint(0, 256, (POOL_SIZE,), generator=generator, dtype=torch.uint8).to(device)

    def stored(self, spec: TensorSpec, rows: tuple[int, int] | None = None) -> dict[str, Tensor]:
        """The stored tensors of one weight by name, its scale included where it has one; of some of its rows, or of all."""
        spec, first = part_of(spec, rows), rows[0] * math.prod(spec.shape[1:]) if rows else 0
        storage, (mean, std) = storage_of(spec), _moments(spec)
        if storage == "plain":
            numbers = self._cut(self.numbers, spec, first) if std else self.numbers.new_zeros(spec.shape)
            return {spec.name: (numbers * std + mean).to(TORCH_DTYPES[spec.dtype])}
        pool, code_std = (self.fp4, _FP4_CODE_STD) if storage == "fp4" else (self.fp8, _FP8_CODE_STD)
        weight = self._cut(pool, spec, first).view(TORCH_DTYPES[spec.dtype])
        byte = round(math.log2(std / code_std)) + E8M0_BIAS
        scale = torch.full(_scale_shape(spec), byte, dtype=torch.uint8, device=weight.device)
        return {spec.name: weight, scale_name(spec.name): scale.view(torch.float8_e8m0fnu)}

    def _cut(self, pool: Tensor, spec: TensorSpec, skipped: int) -> Tensor:
        """The numbers behind the first `skipped` of a weight."""
        digest = hashlib.blake2b(f"{self.seed}/{spec.name}".encode(), digest_size=8).digest()
        start, count = (int.from_bytes(digest, "little") + skipped) % POOL_SIZE, math.prod(spec.shape)
        out = pool.new_empty(count)
        first = min(count, POOL_SIZE - start)
        out[:first] = pool[start : start + first]
        whole = (count - first) // POOL_SIZE * POOL_SIZE
        out[first : first + whole].view(-1, POOL_SIZE).copy_(pool)
        out[first + whole :] = pool[: count - first - whole]
        return out.view(spec.shape)


def _moments(spec: TensorSpec) -> tuple[float, float]:
    for ending, mean, std in _KINDS:
        if spec.name.endswith(ending):
            return mean, std
    gain = RESIDUAL_GAIN if spec.name.endswith(_RESIDUAL) else 1.0
    return 0.0, gain / math.sqrt(master_shape(spec)[-1])


def _scale_shape(spec: TensorSpec) -> tuple[int, int]:
    rows, columns = master_shape(spec)
    return (math.ceil(rows / 32) if storage_of(spec) == "fp8_blocks" else rows, math.ceil(columns / 32))
