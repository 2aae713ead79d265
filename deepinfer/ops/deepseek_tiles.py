"""TileKernels behind our ops: norms, quantisers, rotation, router, streams, n-gram hashes, on Blackwell and Ascend 950.

Written against tile-kernels 2.1.0; not run here.

Legend: T rows · D hidden · K head dim · H heads · F rope frequencies · P rows of experts · J gate and up, 2 I · N streams ·
M source stream · E experts · X chosen experts · G n-gram slots · O n-gram orders.
"""

import torch
from torch import Tensor

from deepinfer.ops.deepseek_gemm import Coded
from deepinfer.ops.deepseek_packages import package

FP8, FP4 = "e4m3", "e2m1"
GROUP = 32


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    assert weight_D.dtype == x_TD.dtype and x_TD.shape[-1] % 16 == 0, "one dtype, columns a multiple of 16"
    out_TD, _, _ = package("tile_kernels").quant.norm_forward(x_TD, weight_D, eps)
    return out_TD


def norm_quantise(x_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Coded]:
    """Normed rows, and their FP8 codes with packed scales as `deepseek_gemm` takes them (four a word; on Ascend two)."""
    assert weight_D.dtype == x_TD.dtype and x_TD.shape[-1] % (4 * GROUP) == 0, "one dtype, columns a multiple of 128"
    pair, normed_TD, _, _ = package("tile_kernels").quant.norm_forward_and_per_token_cast(
        *(x_TD, weight_D, eps, FP8, GROUP),
        use_tma_aligned_col_major_sf=True,
        round_sf=True,
        use_packed_ue8m0=True,
        with_out_bf16=True,
    )
    return normed_TD, Coded(*pair)


def quantise_activation(x_TD: Tensor) -> Tensor:
    """x rounded to the FP8 grid, in its own dtype."""
    return _rounded(x_TD, FP8)


def quantise_index(x: Tensor) -> Tensor:
    """Index queries or keys […, 128] rounded to the FP4 grid."""
    return _rounded(x.flatten(0, -2), FP4).view(x.shape)


def _rounded(x_TD: Tensor, fmt: str) -> Tensor:
    """The package rounds in place."""
    assert x_TD.ndim == 2 and x_TD.shape[1] % 64 == 0, "rows of a multiple of 64 columns"
    x_TD = x_TD.clone(memory_format=torch.contiguous_format)
    package("tile_kernels").quant.per_token_cast_and_cast_back(x_TD, fmt, GROUP, round_sf=True)
    return x_TD


def swiglu_quantise(h_PJ: Tensor, weight_P: Tensor | None, limit: float) -> Coded:
    """FP8 codes of silu(min(gate, limit)) · clamp(up, ±limit) · weight, with packed scales."""
    assert h_PJ.is_contiguous() and h_PJ.shape[1] % (8 * GROUP) == 0, (
        "contiguous, gate and up of a multiple of 128 columns"
    )
    pair = package("tile_kernels").quant.swiglu_forward_and_per_token_cast(
        *(h_PJ, FP8, GROUP),
        topk_weights=weight_P,
        use_tma_aligned_col_major_sf=True,
        round_sf=True,
        use_packed_ue8m0=True,
        clamp_value=limit,
    )
    return Coded(*pair)


def rotate(x: Tensor, rope_T2F: Tensor, inverse: bool = False) -> Tensor:
    """As our twin; the package turns in place, so the rotated dims are copied first. One table row a row of x."""
    width = 2 * rope_T2F.shape[2]
    assert width in (64, 128), "64 or 128 rotated dims"
    x_THK = x.clone() if x.ndim == 3 else x.clone().unsqueeze(1)
    table_TR = rope_T2F.float().flatten(1).contiguous()  # cosines, then sines
    package("tile_kernels").transform.apply_rotary(x_THK[..., -width:], table_TR, interleaved=True, conjugate=inverse)
    return x_THK.view(x.shape)


def choose_experts(
    logits_TE: Tensor, bias_E: Tensor, chosen: int, factor: float, rank: int = 0
) -> tuple[Tensor, Tensor]:
    """Scores, choice and weights from float32 gate logits: ids int64 [T, X], weights float32 [T, X]."""
    assert logits_TE.dtype == bias_E.dtype == torch.float32, "logits and bias are float32"
    picks_TX, weights_TX = package("tile_kernels").moe.moe_topk_gate_forward(
        logits_TE.contiguous(), chosen, False, 0, factor, rank, scoring_func="sqrtsoftplus", bias=bias_E.contiguous()
    )
    return picks_TX, weights_TX


def hyper_mix(x_TND: Tensor, out_TD: Tensor, mixing_TMN: Tensor, write_TN: Tensor) -> Tensor:
    """New streams in bfloat16; the package wants a batch dim in front."""
    mixed = package("tile_kernels").mhc.mhc_post_fwd(
        out_TD.unsqueeze(0), x_TND.unsqueeze(0), write_TN[None, :, :, None], mixing_TMN.unsqueeze(0)
    )
    return mixed.squeeze(0)


def hyper_collapse(x_TND: Tensor, mix_TN: Tensor) -> Tensor:
    out_TD = x_TND.new_empty(x_TND.shape[0], x_TND.shape[2])
    package("tile_kernels").mhc.mhc_pre_apply_mix_fwd(x_TND.contiguous(), mix_TN.contiguous(), out_TD)
    return out_TD


def engram_rows(classes_TG: Tensor, multipliers_G: Tensor, primes_OH: Tensor, offsets_OH: Tensor) -> Tensor:
    """Row ids int64 [T, O · H] of one layer's table."""
    rows_1TR = package("tile_kernels").engram.engram_hash(
        classes_TG.int(), multipliers_G[None].long(), primes_OH[None].int(), offsets_OH.flatten()[None].int()
    )
    return rows_1TR[0].long()
