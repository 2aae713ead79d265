"""torch_npu behind our ops on Ascend 950: how it is found, and scales in the shape that its MX products take.

Written against torch-npu 2.13.0; not run here. Its functions are the vendor's, compiled; DeepSeek's own packages for this chip
are behind the files deepseek_*.py.

Legend: R rows (tokens or outputs) · G scale groups of 32 columns · P pairs of groups.
"""

import importlib
from functools import cache
from types import ModuleType

import torch.nn.functional as F
from torch import Tensor

from deepinfer.interfaces.kernel_packages import ASCEND
from deepinfer.ops import deepseek_packages

NAME, DISTRIBUTION, VERSION = "torch_npu", "torch-npu", "2.13.0"
NEEDED = ("npu_quant_matmul", "npu_grouped_matmul", "npu_weight_quant_preprocess")  # the last wants CANN 9.2
BY_32 = (1, 1, 32)  # granularity of scales: rows, outputs, columns


@cache
def npu() -> ModuleType:
    """The imported package. Raises ValueError, with what to type, where it is absent, too old, or for another chip."""
    here = deepseek_packages.architecture()
    if here != ASCEND:
        raise ValueError(f"{NAME}: these adapters are for {ASCEND}, this machine has {here or 'neither GPU nor NPU'}")
    get = f"pip install {DISTRIBUTION}=={VERSION}, of the same release as torch and after CANN 9.2"
    try:
        module = importlib.import_module(NAME)
    except ImportError as error:
        raise ValueError(f"{NAME} cannot be imported ({error}): {get}") from error
    lacking = [name for name in NEEDED if not hasattr(module, name)]
    if lacking:
        found = deepseek_packages.version_of(NAME)
        raise ValueError(f"{NAME} {found} has no {', '.join(lacking)}; the adapters want {VERSION}: {get}")
    return module


def paired_scales(scale_RG: Tensor) -> Tensor:
    """E8M0 bytes uint8 […, R, G] as […, R, P, 2]: two groups side by side, 2^0 where the last has no neighbour."""
    return F.pad(scale_RG, (0, scale_RG.shape[-1] % 2), value=127).unflatten(-1, (-1, 2)).contiguous()
