"""DeepSeek's own kernel packages behind our ops: what a build must support, and how they are imported.

The adapters are in the files deepseek_*.py, one for each package. A package is imported when an adapter is first called.
Nobody has run them: argument order, shapes, dtypes and alignments are tested against signatures read from named versions of
the packages (tests/contracts), on a machine that has none of them.
"""

import importlib
import importlib.metadata
import inspect
from functools import cache
from types import ModuleType
from typing import Any

import torch

from deepinfer.interfaces.kernel_packages import ASCEND, BY_NAME


@cache
def package(name: str) -> ModuleType:
    """The imported package. Raises ValueError, with what to type, where it is absent, another build, or for other chips."""
    known = BY_NAME[name]
    here = architecture()
    if here not in known.architectures:
        chips = " or ".join(known.architectures)
        raise ValueError(
            f"{name}: its kernels for V4.1 are for {chips}, this machine has {here or 'neither GPU nor NPU'}"
        )
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} cannot be imported ({error}): {known.get}") from error
    for dotted, argument in known.marks:
        if not has(module, dotted, argument):
            what = f"argument {argument} of {dotted}" if argument else dotted
            raise ValueError(
                f"{name} {version_of(name)} has no {what}; it is another build than {known.distribution}: {known.get}"
            )
    return module


def architecture() -> str:
    """sm90, sm100, …, ascend950, or empty; of the current device."""
    if torch.cuda.is_available():
        return "sm{}{}".format(*torch.cuda.get_device_capability())
    npu = getattr(torch, "npu", None)
    return ASCEND if npu is not None and npu.is_available() else ""


def version_of(name: str) -> str:
    """Version of the distribution that brings an import name, empty where none does."""
    for distribution in importlib.metadata.packages_distributions().get(name, ()):
        return importlib.metadata.version(distribution)
    return ""


def use_deterministic() -> None:
    """Fixed splits and no vendor BLAS in both packages that have a switch: results do not depend on the batch."""
    package("deep_gemm").use_deterministic_algorithms(True)
    package("tile_kernels").use_deterministic_algorithms(True)


def has(module: ModuleType, dotted: str, argument: str) -> bool:
    """Whether there is such a function, with such an argument where one is named."""
    value: Any = module
    for part in dotted.split("."):
        value = getattr(value, part, None)
    if value is None or not argument:
        return value is not None
    return argument in inspect.signature(value).parameters
