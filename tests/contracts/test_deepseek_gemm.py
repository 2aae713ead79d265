"""The adapter of DeepGEMM: argument order, shapes, dtypes and alignments against deepinfer-gemm 2.8.2.

The package is not here and its kernels are not run: a stub records the calls. What an argument must look like is what the
package's own checks ask for; numbers are checked only where the adapter itself makes them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_packages import Stub, decoded, is_packed
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import deepseek_gemm, deepseek_layout
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight
from deepinfer.ops.hyper_border import Coefficients, SiteWeights

E4M3, I8, I32, I64, F32, BF16 = torch.float8_e4m3fn, torch.int8, torch.int32, torch.int64, torch.float32, torch.bfloat16


def grid(*shape: int) -> Tensor:
    return formats.fake_fp8_rows(torch.randn(*shape).bfloat16())


def fp8_weight(outputs: int, inputs: int) -> Fp8Weight:
    return Fp8Weight(*formats.quantise_fp8_blocks(torch.randn(outputs, inputs)))


def fp4_experts(experts: int, outputs: int, inputs: int) -> Fp4Experts:
    codes = torch.randint(0, 256, (experts, outputs, inputs // 2), dtype=torch.uint8)
    return Fp4Experts(codes, torch.randint(120, 131, (experts, outputs, inputs // 32), dtype=torch.uint8))


def test_dense_fp8(stub: Callable[[str], Stub]) -> None:
    gemm, weight, x_TK = stub("deep_gemm"), fp8_weight(96, 256), grid(5, 256)
    out_TN = deepseek_gemm.fp8_linear(x_TK, deepseek_gemm.prepare_dense(weight))
    call = gemm.arguments("fp8_gemm_nt")
    (codes, scales), (weight_codes, weight_scales) = call["a"], call["b"]
    assert codes.dtype == weight_codes.dtype == E4M3 and codes.is_contiguous() and weight_codes.is_contiguous()
    is_packed(scales, 5, 256)
    is_packed(weight_scales, 96, 256)
    assert call["recipe"] == (1, 1, 32) and call["d"] is out_TN and out_TN.dtype == BF16 and out_TN.shape == (5, 96)
    assert torch.equal(decoded(codes, scales), x_TK.float())
    assert torch.equal(decoded(weight_codes, weight_scales), weight.numbers())


def test_bf16(stub: Callable[[str], Stub]) -> None:
    gemm = stub("deep_gemm")
    out = deepseek_gemm.linear(torch.randn(3, 64).bfloat16(), torch.randn(8, 64).bfloat16(), F32)
    assert gemm.arguments("bf16_gemm_nt")["d"] is out and out.dtype == F32 and out.shape == (3, 8)


@pytest.mark.parametrize("counts", [(3, 0, 5), (128, 1, 0), (0, 0, 2)])
def test_grouped_fp4(stub: Callable[[str], Stub], counts: tuple[int, ...]) -> None:
    gemm, experts = stub("deep_gemm"), fp4_experts(3, 64, 128)
    gemm.answers["get_mk_alignment_for_contiguous_layout"] = lambda: 128
    gemm.answers["m_grouped_fp8_fp4_gemm_nt_contiguous"] = lambda d, grouped_layout, **_: d.copy_(
        grouped_layout.unsqueeze(1).expand_as(d)
    )
    starts_E1, x_PK = torch.tensor((0, *counts)).cumsum(0).int(), grid(sum(counts), 128)
    out_PN = deepseek_gemm.fp4_grouped_linear(x_PK, starts_E1, deepseek_gemm.prepare_experts(experts))
    call = gemm.arguments("m_grouped_fp8_fp4_gemm_nt_contiguous")
    (codes, scales), (weight_codes, weight_scales), owners = call["a"], call["b"], call["grouped_layout"]
    assert weight_codes.dtype == I8 and weight_codes.shape == (3, 64, 64) and codes.dtype == E4M3
    is_packed(weight_scales, 64, 128)
    assert weight_scales.stride(0) == weight_scales.stride(2) * weight_scales.shape[2]
    is_packed(scales, codes.shape[0], 128)
    assert owners.dtype == I32 and owners.shape == codes.shape[:1] and owners.is_contiguous() and len(owners) % 128 == 0
    assert call["recipe_a"] == call["recipe_b"] == (1, 32) and call["d"].dtype == BF16
    for expert, count in enumerate(counts):
        places = (owners == expert).nonzero().flatten()
        assert len(places) == count and (count == 0 or places[0] % 128 == 0)
    assert torch.equal(out_PN[:, 0].int(), torch.arange(3).repeat_interleave(torch.tensor(counts)).int())


def test_index_scores(stub: Callable[[str], Stub]) -> None:
    gemm = stub("deep_gemm")
    gemm.answers["get_mqa_logits_metadata"] = lambda **_: torch.zeros(4, dtype=I32)
    gemm.answers["fp8_fp4_mqa_logits"] = lambda weights, max_seqlen_k, **_: torch.ones(
        len(weights), max_seqlen_k, dtype=BF16
    )
    q_TIK, rows_JR = formats.fake_index(torch.randn(4, 32, 128)), formats.pack_index(torch.randn(50, 128))
    start_T, end_T = torch.tensor([0, 0, 20, 20]), torch.tensor([7, 8, 50, 20])
    scores_TW = deepseek_gemm.index_scores(q_TIK, torch.randn(4, 32), rows_JR, start_T, end_T)
    call = gemm.arguments("fp8_fp4_mqa_logits")
    (q_codes, q_scales), (codes, scales) = call["q"], call["kv"]
    assert q_codes.dtype == codes.dtype == I8 and q_codes.shape == (4, 32, 64) and codes.shape == (50, 64)
    assert q_scales.dtype == scales.dtype == I32 and q_scales.shape == (4, 32) and scales.shape == (50,)
    assert all(value.is_contiguous() for value in (q_codes, q_scales, codes, scales))
    assert call["weights"].dtype == BF16 and call["weights"].stride(0) * 2 % 16 == 0
    assert call["cu_seq_len_k_start"].dtype == call["cu_seq_len_k_end"].dtype == I32 and call["max_seqlen_k"] == 30
    schedule = gemm.arguments("get_mqa_logits_metadata")
    assert (schedule["num_kv_tokens"], schedule["num_heads"]) == (50, 32)
    assert (scores_TW > -torch.inf).sum(1).tolist() == [7, 8, 30, 0]


def test_router(stub: Callable[[str], Stub]) -> None:
    gemm = stub("deep_gemm")
    gemm.answers["bf16_mega_gate"] = lambda **_: ("picks", "weights")
    x_TD, gate_ED = torch.randn(3, 512).bfloat16(), torch.randn(384, 512).bfloat16()
    assert deepseek_gemm.choose_experts(x_TD, gate_ED, torch.randn(384), 6, 2.5) == ("picks", "weights")
    call = gemm.arguments("bf16_mega_gate")
    assert [call[name] for name in ("num_topk", "use_shared_as_routed", "num_shared_experts")] == [6, False, 0]
    assert (call["routed_scaling_factor"], call["ep_rank"], call["scoring_func"]) == (2.5, 0, "sqrtsoftplus")


def test_hyper_border(stub: Callable[[str], Stub]) -> None:
    gemm, rows, hidden = stub("deep_gemm"), 6, 1024

    def fill(y_bf16: Tensor, y_fp8: Tensor, y_gemm_sf: Tensor, **outputs: Any) -> None:
        y_bf16.copy_(torch.randn(rows, hidden))
        codes, scale = formats.quantise_fp8_rows(y_bf16)
        y_fp8.copy_(codes)
        y_gemm_sf.copy_(deepseek_layout.packed_scales(scale))
        outputs["new_prev_mix"].fill_(3.0)

    gemm.answers["mega_mhc"] = fill
    ended = Coefficients(torch.rand(rows, 4), torch.rand(rows, 4, 4), torch.rand(rows, 4))
    begun = SiteWeights(torch.randn(24, 4 * hidden), torch.randn(24), torch.rand(3))
    x_TND, out_TD = torch.randn(rows, 4, hidden).bfloat16(), torch.randn(rows, hidden).bfloat16()
    border = deepseek_gemm.hyper_border(x_TND, out_TD, ended, begun, torch.rand(hidden).bfloat16(), 1e-20, 1e-6, 20)
    call = gemm.arguments("mega_mhc")
    assert call["x"] is out_TD and call["residual"] is x_TND and call["new_residual"] is border.x_TND
    for name in ("shifted_prev_mix", "post_mix", "new_prev_mix", "new_post_mix"):
        assert call[name].shape == (rows, 4, 1) and call[name].dtype == F32 and call[name].is_contiguous()
    assert torch.equal(call["shifted_prev_mix"].squeeze(2), ended.read_TN)
    assert torch.equal(call["post_mix"].squeeze(2), ended.write_TN) and call["comb_res_mix"] is ended.mixing_TMN
    assert call["fn"] is begun.fn_CX and call["mix_scales"] is begun.scale_3 and call["mix_bases"] is begun.base_C
    numbers = ("hc_mult", "hc_norm_eps", "hc_pre_eps", "hc_post_scale", "sinkhorn_eps", "num_sinkhorn_iters")
    assert [call[name] for name in numbers] == [4, 1e-20, 1e-6, 2.0, 1e-6, 20]
    assert (call["rmsnorm_eps"], call["rmsnorm_scale"]) == (1e-20, 1.0) and call["y_fp8"].dtype == E4M3
    is_packed(call["y_gemm_sf"], rows, hidden)
    assert border.coefficients is not None and (border.coefficients.read_TN == 3.0).all()
    assert torch.equal(border.quantised_TD, formats.fake_fp8_rows(border.normed_TD))


def test_experts_across_ranks(stub: Callable[[str], Stub]) -> None:
    gemm, buffer = stub("deep_gemm"), type("Buffer", (), {})()
    buffer.x, buffer.x_sf = torch.zeros(8, 256, dtype=E4M3), torch.zeros(8, 2, dtype=I32)
    buffer.topk_idx, buffer.topk_weights = torch.zeros(8, 2, dtype=I64), torch.zeros(8, 2)
    gemm.answers["get_symm_buffer_for_mega_moe"] = lambda **_: buffer
    gemm.answers["transform_weights_for_mega_moe"] = lambda l1_weights, l2_weights, **_: (l1_weights, l2_weights)
    experts = deepseek_gemm.RankedExperts("group", fp4_experts(2, 256, 256), fp4_experts(2, 256, 128), 4, 8, 2)
    made = gemm.arguments("get_symm_buffer_for_mega_moe")
    assert [made[name] for name in ("num_experts", "num_topk", "hidden", "intermediate_hidden")] == [4, 2, 256, 128]
    x_TD, picks_TX, weights_TX = grid(3, 256), torch.tensor([[0, 3], [1, 2], [2, 0]]), torch.rand(3, 2)
    out_TD = experts(x_TD, picks_TX, weights_TX, 10.0)
    call = gemm.arguments("fp8_fp4_mega_moe")
    assert call["y"] is out_TD and out_TD.dtype == BF16 and call["sym_buffer"] is buffer
    assert (call["recipe"], call["activation"], call["activation_clamp"]) == ((1, 1, 32), "swiglu", 10.0)
    assert torch.equal(decoded(buffer.x[:3], buffer.x_sf[:3]), x_TD.float())
    assert torch.equal(buffer.topk_idx[:3], picks_TX) and torch.equal(buffer.topk_weights[:3], weights_TX)
