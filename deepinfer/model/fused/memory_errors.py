"""Which errors say that a device has no memory left, whoever found out: torch's allocator, the driver, or a capture."""

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Also where that is the cause of `error`: a capture, for one, fails with an error of its own."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.OutOfMemoryError) or _says_so(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _says_so(error: BaseException) -> bool:
    """The driver's answers come as words: "CUDA error: out of memory", CUDA_ERROR_OUT_OF_MEMORY."""
    return isinstance(error, (RuntimeError, ValueError)) and "out of memory" in str(error).lower().replace("_", " ")
