"""DeepGEMM behind our ops: dense FP8, grouped FP4, index scores, router, hyper-connections, experts across ranks.

Written against deepinfer-gemm 2.8.2; not run here. Activations come as bfloat16 numbers already on the FP8 grid; coding them
again gives the same numbers.

Legend: T rows · K inputs · N outputs · E experts · P sorted rows · A aligned rows · I index heads · J entries · D hidden.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.formats import quantise_fp8_rows
from deepinfer.formats.fp4 import quantise_index
from deepinfer.ops.deepseek_layout import empty_packed, packed_scales, rows_of_blocks
from deepinfer.ops.deepseek_packages import package
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

BY_32 = (1, 1, 32)  # granularity of scales: one a row of either operand, one for 32 columns
MAX_EXPERTS, MAX_CHOSEN = 512, 32  # of the fused router
HYPER_COLUMNS = 1024  # the fused hyper-connections split the hidden size into 16 parts of whole 64-column blocks
WRITE_SCALE = 2.0


@dataclass(frozen=True)
class Coded:
    """Numbers as codes and packed scales: float8_e4m3fn [R, K], or int8 [R, K / 2] with two FP4 numbers a byte."""

    codes: Tensor
    scales: Tensor

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        return self.codes, self.scales


def prepare_dense(weight: Fp8Weight) -> Coded:
    """A stored FP8 weight with its block scales written out row by row; once, at load."""
    return Coded(weight.codes_NK.contiguous(), packed_scales(rows_of_blocks(weight.scale, weight.codes_NK.shape[0])))


def prepare_experts(weight: Fp4Experts) -> Coded:
    """Stored FP4 experts with packed scales; the codes stay where they are."""
    return Coded(weight.codes_ENB.view(torch.int8), packed_scales(weight.scale_ENG))


def coded_rows(x_TK: Tensor) -> Coded:
    codes_TK, scale_TG = quantise_fp8_rows(x_TK)
    return Coded(codes_TK, packed_scales(scale_TG))


def fp8_linear(x_TK: Tensor, weight: Coded) -> Tensor:
    """x · weightᵀ [T, N] in bfloat16; x on the FP8 grid."""
    out_TN = torch.empty(x_TK.shape[0], weight.codes.shape[0], dtype=torch.bfloat16, device=x_TK.device)
    package("deep_gemm").fp8_gemm_nt(coded_rows(x_TK).pair, weight.pair, out_TN, recipe=BY_32)
    return out_TN


def linear(x_TK: Tensor, weight_NK: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """x · weightᵀ [T, N] of bfloat16 operands; float32 results where asked for."""
    assert x_TK.dtype == weight_NK.dtype == torch.bfloat16, "operands are bfloat16"
    out_TN = torch.empty(x_TK.shape[0], weight_NK.shape[0], dtype=dtype, device=x_TK.device)
    package("deep_gemm").bf16_gemm_nt(x_TK, weight_NK, out_TN)
    return out_TN


def fp4_grouped_linear(x_PK: Tensor, starts_E1: Tensor, weight: Coded) -> Tensor:
    """[P, N]: every sorted row through its own expert; x on the FP8 grid.

    The package wants each expert's rows to begin at a multiple of its alignment, -1 naming the rows in between.
    """
    gemm = package("deep_gemm")
    places_P, owners_A = aligned_places(starts_E1, gemm.get_mk_alignment_for_contiguous_layout(), x_PK.shape[0])
    x_AK = x_PK.new_zeros(owners_A.shape[0], x_PK.shape[1])
    x_AK[places_P] = x_PK
    out_AN = x_PK.new_empty(owners_A.shape[0], weight.codes.shape[1])
    gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
        coded_rows(x_AK).pair, weight.pair, out_AN, owners_A, recipe_a=BY_32[1:], recipe_b=BY_32[1:]
    )
    return out_AN[places_P]


def aligned_places(starts_E1: Tensor, alignment: int, rows: int) -> tuple[Tensor, Tensor]:
    """Where each sorted row goes, int64 [P], and the expert of every aligned row, int32 [A], -1 for none."""
    counts_E = starts_E1.diff()
    padded_E = counts_E + -counts_E % alignment
    first_E = padded_E.cumsum(0) - padded_E
    expert_P = torch.repeat_interleave(torch.arange(len(counts_E), device=starts_E1.device), counts_E)
    places_P = torch.arange(rows, device=starts_E1.device) + (first_E - starts_E1[:-1])[expert_P]
    owners_A = torch.full((int(padded_E.sum()),), -1, dtype=torch.int32, device=starts_E1.device)
    owners_A[places_P] = expert_P.int()
    return places_P, owners_A


def index_scores(q_TIK: Tensor, weight_TI: Tensor, rows_JR: Tensor, start_T: Tensor, end_T: Tensor) -> Tensor:
    """Scores [T, W] in bfloat16 of entries start[t] … end[t] - 1 of gathered rows uint8 [J, 68]; W the widest; -inf behind.

    q lies on the FP4 grid (`quantise_index`). The package's paged form keeps the codes of a block apart from its scales; our
    blocks hold whole rows, so the rows of a step are gathered and split first.
    """
    gemm = package("deep_gemm")
    half = q_TIK.shape[2] // 2
    q_codes, q_scales = quantise_index(q_TIK)
    weight_TI = weight_TI.bfloat16()
    assert weight_TI.shape[1] % 8 == 0, "a row of head weights is a multiple of 16 bytes"
    keys = (rows_JR[:, :half].contiguous().view(torch.int8), rows_JR[:, half:].contiguous().view(torch.int32).flatten())
    queries = (q_codes.view(torch.int8), q_scales.contiguous().view(torch.int32).flatten(1))
    start_T, end_T = start_T.int(), end_T.int()
    widest = max(1, int((end_T - start_T).max()))
    schedule = gemm.get_mqa_logits_metadata(start_T, end_T, rows_JR.shape[0], q_TIK.shape[1])
    scores_TW = gemm.fp8_fp4_mqa_logits(queries, keys, weight_TI, start_T, end_T, widest, schedule_meta=schedule)
    behind_TW = torch.arange(widest, device=q_TIK.device) >= (end_T - start_T).unsqueeze(1)
    return scores_TW.masked_fill(behind_TW, -torch.inf)


def choose_experts(
    x_TD: Tensor, gate_ED: Tensor, bias_E: Tensor, chosen: int, factor: float, rank: int = 0
) -> tuple[Tensor, Tensor]:
    """Gate product, scores, choice and weights in one: ids int64 [T, X] and weights float32 [T, X]."""
    assert x_TD.dtype == gate_ED.dtype == torch.bfloat16 and bias_E.dtype == torch.float32, (
        "bf16 operands, float32 bias"
    )
    assert x_TD.shape[1] % 256 == 0 and gate_ED.shape[0] <= MAX_EXPERTS and chosen <= MAX_CHOSEN, "sizes of the router"
    picks_TX, weights_TX = package("deep_gemm").bf16_mega_gate(
        x_TD.contiguous(),
        gate_ED.contiguous(),
        chosen,
        False,
        0,
        factor,
        rank,
        "sqrtsoftplus",
        bias=bias_E.contiguous(),
    )
    return picks_TX, weights_TX


def hyper_border(
    x_TND: Tensor,
    out_TD: Tensor,
    ended: Coefficients,
    begun: SiteWeights,
    norm_D: Tensor,
    norm_eps: float,
    eps: float,
    iterations: int,
) -> Border:
    """The border between two sites, as our twin of that name. The quantised rows are decoded again from the package's codes."""
    rows, streams, hidden = x_TND.shape
    assert streams == 4 and hidden % HYPER_COLUMNS == 0, "four streams of a multiple of 1,024 columns"
    new_x_TND, normed_TD = torch.empty_like(x_TND), torch.empty_like(out_TD)
    codes_TD = torch.empty_like(out_TD, dtype=torch.float8_e4m3fn)
    scales_TP = empty_packed(rows, hidden, x_TND.device)
    read, write, mixing = (torch.empty_like(value) for value in (ended.read_TN, ended.write_TN, ended.mixing_TMN))
    package("deep_gemm").mega_mhc(
        *(out_TD, x_TND, ended.read_TN.unsqueeze(2), ended.write_TN.unsqueeze(2), ended.mixing_TMN),
        *(begun.fn_CX, begun.scale_3, begun.base_C, streams, norm_eps, eps, WRITE_SCALE, eps, iterations),
        *(norm_D, norm_eps, 1.0, new_x_TND, read.unsqueeze(2), write.unsqueeze(2), mixing),
        y_bf16=normed_TD,
        y_fp8=codes_TD,
        y_gemm_sf=scales_TP,
    )
    bytes_TG = scales_TP.contiguous().view(torch.uint8)
    powers_TG = torch.exp2(bytes_TG.float() - 127)
    grid_TD = (codes_TD.float().unflatten(1, (-1, 32)) * powers_TG.unsqueeze(2)).flatten(1).to(normed_TD.dtype)
    collapsed_TD = normed_TD.new_empty(0, hidden)  # the package does not give it away
    return Border(new_x_TND, collapsed_TD, normed_TD, grid_TD, Coefficients(read, mixing, write))


class RankedExperts:
    """Dispatch, both expert products and combine of all ranks in one kernel, over a symmetric buffer."""

    def __init__(
        self, group: Any, w13: Fp4Experts, w2: Fp4Experts, num_experts: int, max_rows: int, chosen: int
    ) -> None:
        """`w13` and `w2` hold this rank's experts, gate before up."""
        gemm = package("deep_gemm")
        hidden, inner = w2.codes_ENB.shape[1], w2.codes_ENB.shape[2] * 2
        self.buffer = gemm.get_symm_buffer_for_mega_moe(
            group, num_experts, max_rows, chosen, hidden, inner, mma_type="fp8xfp4", activation="swiglu"
        )
        self.w13, self.w2 = gemm.transform_weights_for_mega_moe(prepare_experts(w13).pair, prepare_experts(w2).pair)

    def __call__(self, x_TD: Tensor, picks_TX: Tensor, weights_TX: Tensor, limit: float) -> Tensor:
        """Σ over slots of weight · expert(pick)(x), [T, D]; x on the FP8 grid."""
        rows, coded = x_TD.shape[0], coded_rows(x_TD)
        self.buffer.x[:rows].copy_(coded.codes)
        self.buffer.x_sf[:rows].copy_(coded.scales)
        self.buffer.topk_idx[:rows].copy_(picks_TX)
        self.buffer.topk_weights[:rows].copy_(weights_TX)
        out_TD = torch.empty_like(x_TD)
        package("deep_gemm").fp8_fp4_mega_moe(
            out_TD,
            self.w13,
            self.w2,
            self.buffer,
            recipe=BY_32,
            activation="swiglu",
            activation_clamp=limit,
            fast_math=False,
        )
        return out_TD
