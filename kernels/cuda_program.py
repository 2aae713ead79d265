"""CUDA C++ kernels: compiled by NVRTC when first used, kept as cubins in the user's cache folder, launched through the driver.

A source is one .cu file of this folder. It includes nothing but .cuh files of this folder, so no CUDA toolkit is needed: NVRTC
and the driver's bindings (`cuda-bindings`) come with torch's CUDA builds.
"""

import ctypes
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from deepinfer.kernels.cubin_cache import kept_or_made
from torch import Tensor

SOURCES = Path(__file__).parent
DEFAULT_SHARED_BYTES = 48 << 10  # more has to be asked for
_INCLUDE = re.compile(r'^\s*#include\s+"([\w.]+)"', re.MULTILINE)
Launch = Callable[..., None]


class CudaProgram:
    """One .cu file with its macros. `kernel(name)` is compiled for the current device, once a process."""

    def __init__(self, source: str, macros: Mapping[str, int | float | str] | None = None) -> None:
        self.path = SOURCES / source
        self.options = [f"-D{name}={value}" for name, value in (macros or {}).items()]
        self._libraries: dict[int, Any] = {}

    def kernel(
        self,
        name: str,
        *,
        threads: int,
        shared_bytes: int = 0,
        cluster: tuple[int, int, int] | None = None,
        overlap: bool = False,
        cooperative: bool = False,
    ) -> Launch:
        """`launch(grid, *args)` of an extern "C" kernel on the current stream.

        Arguments are tensors (their addresses), ints and bools (32 bits), floats (32 bits), ctypes values, or structures of the
        driver by value. With `overlap` a launch may begin before earlier ones of its stream end; the kernel then waits itself.
        With `cooperative` all blocks of a launch are on the device at once, so that they may wait for one another.
        Raises ValueError where the source does not compile for the device, or the driver refuses the kernel.
        """
        driver = _bindings("driver")

        function = _checked(driver.cuLibraryGetKernel(self._library(), name.encode()))
        function = _checked(driver.cuKernelGetFunction(function))
        if shared_bytes > DEFAULT_SHARED_BYTES:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuFuncSetAttribute(function, limit, shared_bytes))
        attributes = [_overlap_attribute()] if overlap else []
        if cooperative:
            attributes.append(_cooperative_attribute())
        if cluster is not None:
            attributes.append(_cluster_attribute(cluster))

        def launch(grid: Sequence[int], *args: Any) -> None:
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
            config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
            config.sharedMemBytes = shared_bytes
            current = torch.cuda.current_device()
            config.hStream = torch._C._cuda_getCurrentRawStream(
                current
            )  # torch.cuda.current_stream() takes ten times as long
            config.attrs, config.numAttrs = attributes, len(attributes)
            values, types = zip(*(_argument(value, current) for value in args))
            _checked(driver.cuLaunchKernelEx(config, function, (values, types), 0))

        return launch

    def _library(self) -> Any:
        driver = _bindings("driver")

        device = torch.cuda.current_device()
        if device not in self._libraries:
            torch.cuda.current_stream()  # makes torch's context the current one
            cubin = self.cubin("sm_{}{}a".format(*torch.cuda.get_device_capability()))
            self._libraries[device] = _checked(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0))
        return self._libraries[device]

    def cubin(self, architecture: str) -> bytes:
        """Machine code for `architecture` (sm_90a, …), from the cache folder where the same source was compiled before."""
        nvrtc = _bindings("nvrtc")

        options = [f"--gpu-architecture={architecture}", "--std=c++17", *self.options]
        text = _with_includes(self.path)
        version = _checked(nvrtc.nvrtcVersion())
        name = hashlib.sha256(repr((text, options, version)).encode()).hexdigest()
        return kept_or_made(name, lambda: _compile(self.path.name, text, options))


def _bindings(name: str) -> Any:
    """`driver` or `nvrtc` of cuda-bindings."""
    try:
        return import_module(f"cuda.bindings.{name}")
    except ImportError as fault:
        raise ImportError(
            f"kernels written in CUDA C++ are compiled and launched through cuda-bindings, which cannot be imported "
            f"here ({fault}): pip install cuda-bindings; what else a machine lacks says: python -m deepinfer doctor"
        ) from fault


def _with_includes(path: Path) -> str:
    """The source with this folder's headers written out in their places, each once."""
    seen: set[str] = set()

    def expand(text: str) -> str:
        def header(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return expand((SOURCES / match[1]).read_text())

        return _INCLUDE.sub(header, text)

    return expand(path.read_text())


def _compile(name: str, text: str, options: list[str]) -> bytes:
    nvrtc = _bindings("nvrtc")

    program = _checked(nvrtc.nvrtcCreateProgram(text.encode(), name.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise ValueError(
            f"{name} does not compile with {' '.join(options)}:\n{log.decode(errors='replace').rstrip(chr(0)).strip()}"
        )
    cubin = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    return cubin


def _argument(value: Any, current: int = 0) -> tuple[Any, Any]:
    """`current`: the number of the device that the kernel is launched on."""
    if isinstance(value, Tensor):
        place = value.get_device()  # -1: the host
        assert place >= 0, f"kernels take tensors of a CUDA device, this one is on {value.device}"
        assert place == current, (
            f"the tensor is on {value.device}, the current device is cuda:{current}: torch.cuda.set_device"
        )
        return value.data_ptr(), ctypes.c_void_p
    if value is None:
        return 0, ctypes.c_void_p
    if isinstance(value, (bool, int)):
        assert -(1 << 31) <= value < 1 << 32, (
            f"a kernel was given the whole number {value}; it takes 32 bits of it: give fewer rows at a time"
        )
        return int(value), ctypes.c_int32
    if isinstance(value, float):
        return value, ctypes.c_float
    if hasattr(value, "getPtr"):  # a structure of the driver, such as a tensor map
        return value, None
    return value.value, type(value)


def _overlap_attribute() -> Any:
    driver = _bindings("driver")

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _cooperative_attribute() -> Any:
    driver = _bindings("driver")

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    return attribute


def _cluster_attribute(cluster: tuple[int, int, int]) -> Any:
    driver = _bindings("driver")

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster
    return attribute


def _checked(result: tuple[Any, ...]) -> Any:
    """What a call of the bindings returns behind its status: nothing, one value, or several."""
    status, *values = result
    if int(status) != 0:
        raise ValueError(f"the CUDA driver or NVRTC answered {status.name}")
    return values[0] if len(values) == 1 else values


def device_of(tensor: Tensor) -> int:
    """The number of the CUDA device that a kernel is to run on: the tensor's."""
    assert tensor.is_cuda, (
        f"a kernel written in CUDA C++ was given a tensor on {tensor.device}; it runs on a GPU: move its tensors by "
        ".to('cuda'), or take the twins, deepinfer.ops.device.twins()"
    )
    return tensor.get_device()


@cache
def num_multiprocessors(device: int) -> int:
    """Streaming multiprocessors of a CUDA device."""
    return torch.cuda.get_device_properties(device).multi_processor_count
