"""Tensors that stay in the host's memory and that a GPU reads there, over the bus, by the address that the host knows.

Their pages are locked where they lie: torch's own pinned memory comes in powers of two, of which a large table would waste up
to half, and would be a copy besides.
"""

import weakref

import torch
from torch import Tensor

SMALL_BYTES = 64 << 20  # such tensors share pages with others, and come from torch's pinned memory


def readable_on_host(x: Tensor, device: torch.device) -> Tensor:
    """`x`, contiguous and on the host; where `device` is a GPU its pages are locked as long as it lives, and it may read them.

    Raises RuntimeError with what to do where the system locks no more pages.
    """
    host = x.cpu().contiguous()
    if device.type != "cuda" or host.is_pinned():
        return host
    if host.nbytes < SMALL_BYTES:
        return host.pin_memory()
    _lock(host)
    return host


def _lock(host: Tensor) -> None:
    """Until its storage ends."""
    driver, start = torch.cuda.cudart(), host.untyped_storage().data_ptr()
    fault = int(driver.cudaHostRegister(start, host.untyped_storage().nbytes(), 0))
    if fault:
        raise RuntimeError(
            f"an n-gram table of {host.nbytes / 2**30:,.1f} GiB could not be locked in the host's memory for the GPU (CUDA "
            f"error {fault}): `ulimit -l` or a container's limit may be less, or so much is not free. Raise it, or type "
            "parallel.engram=sharded or replicated, which keep tables on the GPUs"
        )
    weakref.finalize(host.untyped_storage(), driver.cudaHostUnregister, start)
