"""The router on Hopper (CUDA C++, GPU only): the best experts by biased score, and their weights.

Choices are those of float32 scores that are within 4e-7 of exact ones for logits above -10 (1e-5 at -80).

Legend: T rows · E experts · X chosen experts.
"""

from functools import cache

import torch
from deepinfer.kernels.cuda_program import CudaProgram, Launch, device_of
from torch import Tensor

WARPS, LANES = 8, 128  # rows of a block; experts that a warp reads together
MOST_EXPERTS, MOST_CHOSEN = 512, 8


def router(logits_TE: Tensor, bias_E: Tensor, chosen: int, factor: float) -> tuple[Tensor, Tensor]:
    """Ids int32 [T, X], best first, lowest id first among equals, and weights float32 [T, X] that add up to `factor`."""
    rows, experts = logits_TE.shape
    assert logits_TE.dtype == bias_E.dtype == torch.float32, "logits and bias are float32"
    assert experts % LANES == 0 and experts <= MOST_EXPERTS, "experts come in 128s, 512 at most"
    assert logits_TE.stride(1) == 1 and logits_TE.stride(0) % 4 == 0, "rows are adjacent numbers and begin at 16 bytes"
    assert bias_E.is_contiguous() and bias_E.shape == (experts,), "one bias an expert"
    assert logits_TE.data_ptr() % 16 == bias_E.data_ptr() % 16 == 0, "logits and bias begin at 16 bytes"
    assert 0 < chosen <= MOST_CHOSEN, f"at most {MOST_CHOSEN} experts are chosen"
    picks_TX = torch.empty(rows, chosen, dtype=torch.int32, device=logits_TE.device)
    weights_TX = torch.empty(rows, chosen, device=logits_TE.device)
    if rows:
        device = device_of(logits_TE)
        args = (logits_TE, bias_E, picks_TX, weights_TX, rows, logits_TE.stride(0), float(factor))
        _kernel(device, experts, chosen)((-(-rows // WARPS),), *args)
    return picks_TX, weights_TX


@cache
def _kernel(device: int, experts: int, chosen: int) -> Launch:
    program = CudaProgram("cuda_router.cu", {"EXPERTS": experts, "CHOSEN": chosen})
    return program.kernel("router", threads=WARPS * 32, overlap=True)
