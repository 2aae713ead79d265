"""Bytes of the weights: of the whole checkpoint by class, and of the part one rank holds.

The released table has 96,085 tensors, nearly all of them experts. Every class is affine in the number of experts, so
two small tables, of one and of two experts, give the exact figures of any number in a few milliseconds. They are kept:
both roles of a plan and all plans of a search size the same model.
"""

import math
from functools import lru_cache

import msgspec

from deepinfer.arch.cache import DTYPE_ITEMSIZE
from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import DTYPE_BYTES, tensor_table
from deepinfer.plan.types import Resident, WeightClass

CLASSES = ("embed", "head", "dense", "experts", "engram", "draft", "vision")
_EXPERT = ".ffn.experts."
Key = tuple[str, bool]  # group, and whether the tensor belongs to one routed expert
Row = tuple[int, int, int, int]  # tensors, bytes, elements without scales, of them in F32
Sums = dict[Key, Row]


class Weights:
    """Sizes of one architecture. Elements times the item size is what a class takes when it is expanded."""

    def __init__(self, config: V41Config) -> None:
        self.config = config
        self._sums = _whole(config)

    def classes(self) -> tuple[WeightClass, ...]:
        """The whole checkpoint, in a fixed order; draft experts count as draft."""
        found = []
        for name in CLASSES:
            parts = [sums for (group, _), sums in self._sums.items() if group == name]
            if parts:
                tensors, num_bytes, elements, _ = (sum(column) for column in zip(*parts, strict=True))
                found.append(WeightClass(name=name, num_tensors=tensors, num_bytes=num_bytes, elements=elements))
        return tuple(found)

    def shared(self, group: str, resident: Resident, dtype: str) -> int:
        """Bytes of what every rank holds of a class: all of it but routed experts."""
        return self._bytes((group, False), resident, dtype)

    def experts(self, group: str, resident: Resident, dtype: str, num_held: int) -> int:
        """Bytes of `num_held` routed experts in each layer of class "experts" or "draft"."""
        total = self.config.dspark_n_routed_experts if group == "draft" else self.config.n_routed_experts
        return self._bytes((group, True), resident, dtype) * num_held // total

    def engram_row_bytes(self, resident: Resident, dtype: str) -> int:
        """Bytes of one row of an n-gram table; rows of all tables are alike."""
        rows = sum(self.config.engram_num_embeddings)
        return self._bytes(("engram", False), resident, dtype) // rows if rows else 0

    def _bytes(self, key: Key, resident: Resident, dtype: str) -> int:
        _, num_bytes, elements, wide = self._sums.get(key, (0, 0, 0, 0))
        if resident == "packed":
            return num_bytes
        itemsize = DTYPE_ITEMSIZE[dtype]
        return (elements - wide) * itemsize + wide * max(4, itemsize)  # F32 tensors are never narrowed


@lru_cache(maxsize=16)
def _whole(config: V41Config) -> Sums:
    """The sums of the whole checkpoint, from those of one and of two experts a layer."""
    one, two = _sums(_with_experts(config, 1)), _sums(_with_experts(config, 2))
    return {key: _extrapolate(config, key, one[key], two[key]) for key in one}


def _extrapolate(config: V41Config, key: Key, one: Row, two: Row) -> Row:
    experts = config.dspark_n_routed_experts if key[0] == "draft" else config.n_routed_experts
    tensors, num_bytes, elements, wide = (a + (experts - 1) * (b - a) for a, b in zip(one, two, strict=True))
    return tensors, num_bytes, elements, wide


def _with_experts(config: V41Config, count: int) -> V41Config:
    return msgspec.structs.replace(config, n_routed_experts=count, dspark_n_routed_experts=count)


def _sums(config: V41Config) -> Sums:
    sums: dict[Key, list[int]] = {}
    for tensor in tensor_table(config):
        name, dtype = tensor.name, tensor.dtype
        held = sums.setdefault((tensor.group, _EXPERT in name), [0, 0, 0, 0])
        stored = math.prod(tensor.shape)
        held[0] += 1
        held[1] += stored * DTYPE_BYTES[dtype]
        if name.endswith(".scale"):  # an expanded matrix has its scales multiplied in
            continue
        held[2] += stored * 2 if dtype == "I8" else stored  # a byte of FP4 holds two
        held[3] += stored if dtype == "F32" else 0
    return {key: (tensors, num_bytes, elements, wide) for key, (tensors, num_bytes, elements, wide) in sums.items()}
