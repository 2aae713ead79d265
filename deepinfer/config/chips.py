"""The hardware group: facts of a chip, each with the place and the day it was read. Numbers are per device."""

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from deepinfer.config.leaves import (
    Bytes,
    BytesPerSecond,
    Component,
    FlopsPerSecond,
    Positive,
    Text,
)

T = TypeVar("T")
Date = Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$", extra={"day": True})]  # empty for a value given by hand


class Fact(Struct, Generic[T], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value and where it comes from. On the command line the bare value will do: `hardware.memory_bytes=64GiB`."""

    value: T
    source: str
    date: Date
    note: str = ""


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way from one device to others: bytes per second and direction of one device, and how many devices it joins."""

    value: BytesPerSecond
    devices: Positive
    source: str
    date: Date
    note: str = ""


class Hardware(Component, frozen=True, kw_only=True):
    """What a plan may know of a machine. `AutoHardware` becomes a `Chip` before anything is planned."""


class AutoHardware(Hardware, frozen=True, kw_only=True, tag="auto"):
    """Whatever this machine has: the first accelerator that is found here, else the CPU."""


class SameHardware(Hardware, frozen=True, kw_only=True, tag="same"):
    """The chip of the top level; only a role of deploy=disaggregated can ask for it."""


class Chip(Hardware, frozen=True, kw_only=True):
    """Chip facts. `platform` and `toolkit` are floors (text versions); `op_backends` is the order of preference."""

    name: Text
    vendor: Text
    chips_note: Text
    architecture: Fact[str]  # what kernels are built for: x86_64, sm90, sm100, ascend950, …
    memory_bytes: Fact[Bytes]
    memory_bandwidth_bytes_per_s: Fact[BytesPerSecond]
    peak_flops_by_dtype: dict[str, Fact[FlopsPerSecond]]  # dense, dtype names as in safetensors but lower case
    node_devices: Fact[Positive]  # devices that share a host
    links: dict[str, Link]
    toolkit: dict[str, Fact[str]]
    platform: dict[str, Fact[str]]
    op_backends: tuple[str, ...]


class CpuChip(Chip, frozen=True, kw_only=True, tag="cpu"):
    """A host's processor; its memory is the plan's assumption until a probe has looked."""


class CudaChip(Chip, frozen=True, kw_only=True, tag="cuda"):
    """An NVIDIA GPU."""


class AscendChip(Chip, frozen=True, kw_only=True, tag="ascend"):
    """A Huawei Ascend NPU."""


class VirtualChip(Chip, frozen=True, kw_only=True, tag="virtual"):
    """A chip that is only reckoned with: plans and simulations, never a run."""
