"""FlashInfer's sampler, top-k and norm as peers; compiled by its own JIT when first used.

Legend: B sequences · V vocabulary · T rows · J entries · D hidden.
"""

from types import ModuleType

import torch
from peers_call import Call, peer
from peers_torch import outside_the_allowed, same_choice
from torch import Tensor

PACKAGE = "flashinfer-python"


@peer("flashinfer", package=PACKAGE, tolerance=0.0, compare=same_choice)
def flashinfer_topk(flashinfer: ModuleType, scores_TJ: Tensor, count: int) -> Call:
    """Radix top-k, unsorted; ties in any order."""
    return lambda: flashinfer.top_k(scores_TJ, count)[1]


@peer("flashinfer", package=PACKAGE, tolerance=0.0, compare=outside_the_allowed)
def flashinfer_sample(
    flashinfer: ModuleType, logits_BV: Tensor, temperature_B: Tensor, top_k_B: Tensor, top_p_B: Tensor
) -> Call:
    """Softmax with temperature, top-k, then top-p by rejection: no penalties, masks, min-p or logprobs."""
    sampling = flashinfer.sampling
    seed, offset = (torch.full((1,), n, dtype=torch.int64, device=logits_BV.device) for n in (1234, 0))

    def call() -> Tensor:
        probabilities_BV = sampling.softmax(logits_BV, temperature_B)
        return sampling.top_k_top_p_sampling_from_probs(
            probabilities_BV, top_k_B, top_p_B, filter_apply_order="joint", seed=seed, offset=offset
        )

    return call


@peer("flashinfer", package=PACKAGE, tolerance=0.0, compare=outside_the_allowed)
def flashinfer_sample_plain(flashinfer: ModuleType, logits_BV: Tensor, temperature_B: Tensor, *_: Tensor) -> Call:
    """Sampling from logits without any filter, by noise and argmax; the temperature is 1."""
    seed, offset = (torch.full((1,), n, dtype=torch.int64, device=logits_BV.device) for n in (1234, 0))
    return lambda: flashinfer.sampling.sampling_from_logits(logits_BV, seed=seed, offset=offset)


@peer("flashinfer", package=PACKAGE, tolerance=0.005)
def flashinfer_rms_norm(flashinfer: ModuleType, x_TD: Tensor, weight_D: Tensor, eps: float) -> Call:
    """rmsnorm, bf16 to bf16, no quantisation."""
    weight, out = weight_D.to(x_TD.dtype), torch.empty_like(x_TD)
    return lambda: flashinfer.rmsnorm(x_TD, weight, eps, out=out)


@peer("flashinfer", package=PACKAGE, tolerance=0.05)
def flashinfer_norm_quant(flashinfer: ModuleType, x_TD: Tensor, weight_D: Tensor, eps: float) -> Call:
    """rmsnorm_quant: E4M3 with one scale, 1, for the whole tensor, where ours finds one for each 32 columns."""
    weight, out = weight_D.to(x_TD.dtype), torch.empty(x_TD.shape, dtype=torch.float8_e4m3fn, device=x_TD.device)

    def call() -> Tensor:
        flashinfer.norm.rmsnorm_quant(out, x_TD, weight, 1.0, eps)
        return out

    return call
